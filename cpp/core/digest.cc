#include "core/digest.h"

#include <array>
#include <bit>

#include "core/block_hash.h"

namespace kvfix {
namespace {

// Of structures of 64-bit numbers alone.
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

void mix_sequence(Digest& digest, const Sequence& sequence) {
    const Request& request = *sequence.request;
    digest.mix(request.id);
    digest.mix(std::uint64_t{request.num_tokens()} << 32 | request.beam_width);
    digest.mix(hash_block(request.root_hash, request.tokens, request.block_extras(0, request.num_tokens())));
    mix_retention(digest, request.retention.value_or(Retention{}));
    digest.mix(std::uint64_t{sequence.length} << 32 | sequence.computed);
    digest.mix(hash_block(sequence.known(), sequence.grown_tokens, {}));
    digest.mix(sequence.doubtful_from);
    mix_numbers(digest, sequence.stats);
    for (const HeldBlocks& held : sequence.windows) {
        digest.mix(std::uint64_t{held.left} << 32 | held.size());
        held.for_each([&](BlockIndex block) { digest.mix(block); });
    }
}

void mix_events(Digest& digest, const EventLog& events) {
    digest.mix(events.dropped());
    for (const BlockEvent& event : events.pending()) {
        digest.mix(event.event_id);
        digest.mix(event.block_hash);
        digest.mix(event.parent_hash.value_or(0));
        digest.mix(static_cast<std::uint64_t>(event.kind) << 32 | static_cast<std::uint64_t>(event.tier) << 16 |
                   event.priority);
    }
}

void mix_window(Digest& digest, const Window& window) {
    const BlockStore& blocks = window.blocks;
    for (BlockIndex block = 0; block < blocks.size(); ++block) {
        const Block& record = blocks[block];
        digest.mix(record.in_tree ? (std::uint64_t{record.parent} << 32 | record.num_tokens) : kNone);
        if (record.in_tree) {
            const std::uint64_t above = is_root(record.parent) ? window.tree.hash_of(record.parent) : 0;
            digest.mix(hash_block(above, blocks.content(block), blocks.extras(block)));
        }
        digest.mix(std::uint64_t{record.slot[kPrimary]} << 32 | record.slot[kHost]);
        digest.mix(std::uint64_t{record.pins[kPrimary]} << 32 | record.pins[kHost]);
        digest.mix(std::uint64_t{record.locks[kPrimary]} << 32 | record.locks[kHost]);
        const unsigned flags = (record.in_flight(kPrimary) ? 1U : 0U) | (record.in_flight(kHost) ? 2U : 0U) |
                               (record.undelivered ? 4U : 0U);
        digest.mix(std::uint64_t{record.owners} << 32 | std::uint64_t{record.priority} << 8 | flags);
        if (record.has_duration) {
            digest.mix(window.clocks.duration_ms.at(block));
        }
    }
    for (const RetentionClocks::Deadline& deadline : window.clocks.expiring) {
        digest.mix(static_cast<std::uint64_t>(deadline.at_ms));
        digest.mix(deadline.block);
    }
    for (std::size_t tier = 0; tier < kTiers; ++tier) {
        for (const SlotIndex slot : blocks.free_slots(tier)) {
            digest.mix(slot);
        }
    }
    for (const BlockIndex block : blocks.free_records()) {
        digest.mix(block);
    }
    for (const EvictionQueue* queue : {&window.primary_queue, &window.host_redundant_queue, &window.host_only_queue}) {
        // A parked block and one that is about to be parked are the same state: only the order counts.
        queue->for_each([&](BlockIndex block, Priority) { digest.mix(block); });
    }
}

}  // namespace

std::uint64_t digest_of(const State& state) {
    Digest digest;
    for (const Window& window : state.windows) {
        mix_window(digest, window);
    }
    for (const Sequence* sequence : state.sequences.ordered()) {
        mix_sequence(digest, *sequence);
    }
    const auto mix_items = [&](const std::vector<Transfer>& items) {
        digest.mix(items.size());
        for (const Transfer& item : items) {
            digest.mix(static_cast<std::uint64_t>(item.kind) << 32 | item.window);
            digest.mix(std::uint64_t{item.slot_src} << 32 | item.slot_dst);
            digest.mix(std::uint64_t{item.block} << 32 | item.source);
            digest.mix(item.tokens);
        }
    };
    mix_items(state.ledger.queued());
    for (const auto& [ticket, items] : state.ledger.taken()) {
        digest.mix(ticket);
        mix_items(items);
    }
    digest.mix(state.ledger.next_ticket());
    digest.mix(static_cast<std::uint64_t>(state.now_ms));
    for (const CacheCounters* counters : {&state.closed, &state.iteration, &state.current}) {
        mix_numbers(digest, *counters);
    }
    mix_events(digest, state.events);
    return digest.value();
}

}  // namespace kvfix
