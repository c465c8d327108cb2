#include "core/digest.h"

#include <array>
#include <bit>
#include <span>
#include <string_view>

#include "core/block_hash.h"
#include "core/set_digest.h"
#include "core/steps.h"

namespace kvfix {
namespace {

// Hashes contents under a fixed key, so that ranks that hold the same content agree, whatever their seeds.
const BlockHasher& plain_hasher() {
    static const BlockHasher hasher(Secret{});
    return hasher;
}

BlockHash root_of(std::string_view identity) { return identity.empty() ? BlockHash{} : plain_hasher().root(identity); }

std::uint64_t digest_of(const BlockHash& root, std::span<const TokenId> tokens, std::string_view extras) {
    return plain_hasher().block(root, tokens, extras).first;
}

// For structures that consist of 64-bit numbers alone.
template <class Numbers>
void mix_numbers(Digest& digest, const Numbers& numbers) {
    for (const std::uint64_t number : std::bit_cast<std::array<std::uint64_t, sizeof numbers / 8>>(numbers)) {
        digest.mix(number);
    }
}

void mix_retention(Digest& digest, const Retention& retention) {
    const auto mix_kept = [&](Priority priority, std::optional<std::uint32_t> duration_ms) {
        digest.mix(priority);
        digest.mix(duration_ms ? std::uint64_t{*duration_ms} : ~std::uint64_t{0});
    };
    for (const RetentionRange& range : retention.ranges) {
        digest.mix(std::uint64_t{range.token_begin} << 32 | range.token_end.value_or(kNone));
        mix_kept(range.priority, range.duration_ms);
    }
    digest.mix(retention.ranges.size());
    mix_kept(retention.decode_priority, retention.decode_duration_ms);
}

std::uint64_t digest_of_request(const Request& request) {
    Digest digest;
    digest.mix(request.id);
    digest.mix(std::uint64_t{request.num_tokens()} << 32 | request.beam_width);
    digest.mix(
        digest_of(root_of(request.identity.text()), request.tokens, request.block_extras(0, request.num_tokens())));
    mix_retention(digest, request.retention.value_or(Retention{}));
    return digest.value();
}

std::uint64_t digest_of_sequence(Sequence& sequence) {
    if (sequence.request_digest == 0) {
        sequence.request_digest = digest_of_request(*sequence.request);
    }
    Digest digest;
    digest.mix(sequence.request_digest);
    digest.mix(std::uint64_t{sequence.length} << 32 | sequence.computed);
    digest.mix(std::uint64_t{sequence.known()} << 32 | sequence.doubtful_from);
    digest.mix(sequence.digest_of_grown());
    digest.mix(sequence.suspended ? 1U : 0U);
    mix_numbers(digest, sequence.stats);
    digest.mix(sequence.claimed);
    for (HeldBlocks& held : sequence.windows) {
        digest.mix(std::uint64_t{held.kept} << 32 | held.room);
        digest.mix(held.rolls ? 1U : 0U);
        digest.mix(std::uint64_t{held.left} << 32 | held.size());
        digest.mix(held.digest_of_held());
    }
    return digest.value();
}

void mix_window(Digest& digest, Window& window) {
    auto& [members, sum] = window.block_digests;
    const std::vector<BlockIndex> changed = window.blocks.take_changed();
    members.resize(window.blocks.size());
    for (const BlockIndex block : changed) {
        KVFIX_STEP();
        sum.remove(members[number(block)]);
        members[number(block)] = digest_of_block(window, block);
        sum.add(members[number(block)]);
    }
    digest.mix(sum.value());
    digest.mix(window.blocks.free_digest());
    digest.mix(window.clocks.digest.value());
    // Which they are followed from blocks that the digest covered. Their keys depend on the seed.
    digest.mix(window.gone ? std::uint64_t{window.newcomers->share()} << 32 | window.gone->noted() : 0U);
    digest.mix(window.primary_queue.digest());
    for (EvictionQueue* queue : window.host_queues()) {
        digest.mix(queue->digest());
    }
}

}  // namespace

std::uint64_t digest_of_block(const Window& window, BlockIndex block) {
    const Block& record = window.blocks[block];
    Digest digest;
    digest.mix(number(block));
    digest.mix(record.in_tree ? (std::uint64_t{record.parent.bits()} << 32 | record.num_tokens) : kNone);
    if (record.in_tree) {
        // a prefix already covers the identity
        const bool has_identity = is_root(record.parent) && !window.tree.by_prefix();
        const BlockHash root = has_identity ? window.tree.plain_root(record.parent, &root_of) : BlockHash{};
        digest.mix(digest_of(root, window.blocks.content(block), window.blocks.extras(block)));
        digest.mix(window.tree.prefix_of(record.parent).hash.first);
    }
    digest.mix(std::uint64_t{number(record.slot[kPrimary])} << 32 | number(record.slot[kHost]));
    digest.mix(std::uint64_t{record.pins[kPrimary]} << 32 | record.pins[kHost]);
    digest.mix(std::uint64_t{record.locks[kPrimary]} << 32 | record.locks[kHost]);
    const unsigned flags = (record.in_flight(kPrimary) ? 1U : 0U) | (record.in_flight(kHost) ? 2U : 0U) |
                           (record.undelivered ? 4U : 0U) | (record.outside ? 8U : 0U) |
                           (window.gone && record.asked_again ? 16U : 0U);
    digest.mix(std::uint64_t{record.owners} << 32 | std::uint64_t{record.priority} << 8 | flags);
    if (record.has_duration) {
        digest.mix(window.clocks.duration_ms.at(block));
    }
    return digest.value();
}

std::uint64_t digest_of(State& state) {
    Digest digest;
    for (Window& window : state.windows) {
        mix_window(digest, window);
    }
    digest.mix(state.sequences.digest([](Sequence& sequence) {
        KVFIX_STEP();
        return digest_of_sequence(sequence);
    }));
    digest.mix(state.ledger.digest());
    digest.mix(static_cast<std::uint64_t>(state.now_ms));
    digest.mix(state.resets);
    for (const CacheCounters* counters : {&state.closed, &state.iteration, &state.current}) {
        mix_numbers(digest, *counters);
    }
    digest.mix(state.events.digest());
    return digest.value();
}

}  // namespace kvfix
