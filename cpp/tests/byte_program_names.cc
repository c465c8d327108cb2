// The calls of a ByteProgram about blocks by name: live stores and hashes.
#include <algorithm>

#include "tests/byte_program.h"

namespace kvfix::testing {

void ByteProgram::store_live() {
    if (!bytes_.one_in(4)) {
        run_copies_and_compute();
    }
    const RequestId id = any_request();
    const auto found = sequences_.find(id);
    const bool pin = bytes_.one_in(3);
    const std::optional<std::uint32_t> computed = bytes_.one_in(3) ? std::nullopt : std::optional(reported(id));
    const auto whole = found == sequences_.end() ? std::nullopt : make_whole_tokens(bytes_, found->second);
    const auto tokens = whole ? std::optional<std::span<const TokenId>>(*whole) : std::nullopt;
    const std::vector<Held> held = found == sequences_.end() ? std::vector<Held>() : held_by(found->second);
    std::vector<BlockId> pinned;
    if (!attempt([&] { pinned = manager_.store_blocks_for_reuse(id, pin, tokens, computed); })) {
        return;
    }
    promise(found != sequences_.end(), "an unknown request is stored");
    promise(computed.value_or(0) <= found->second.length(), "more than there is has been computed");
    promise(pin || pinned.empty(), "blocks are pinned that nobody asked for");
    remember_pins(pinned, held);
}

void ByteProgram::name_blocks() {
    const RequestId id = any_request();
    const auto found = sequences_.find(id);
    std::vector<BlockHash> named;
    const std::uint64_t before = manager_.digest();
    const bool known = attempt([&] { named = manager_.commit_and_get_block_hashes(id); });
    promise(manager_.digest() == before, "naming blocks changed the digest");
    promise(known == (found != sequences_.end()), "an unknown request has block hashes");
    if (!known) {
        return;
    }
    const BlockManagerConfig& config = manager_.config();
    const std::vector<BlockHash> prompt =
        block_hashes(*found->second.request, BlockHasher(config.seed, config.hash_bits), config.tokens_per_block);
    promise(named.size() >= prompt.size() && named.size() <= found->second.length() / config.tokens_per_block,
            "a sequence has more hashes than full blocks, or fewer than its prompt");
    promise(std::ranges::equal(prompt, std::span(named).first(prompt.size())), "a prompt's hashes are others");
    hashes_.insert(hashes_.end(), named.begin(), named.end());
}

void ByteProgram::truncate() {
    const OwnedSequence fresh = make_request(bytes_, next_id_++, manager_.config());
    const auto found = sequences_.find(any_request());
    const RequestPtr& request = found == sequences_.end() ? fresh.request : found->second.request;
    const std::uint32_t kept = bytes_.below(request->num_tokens() + 1);
    const std::uint64_t removed = manager_.truncate_blocks(request, kept);
    const std::uint64_t per_window = ceil_div(request->num_tokens(), manager_.config().tokens_per_block);
    promise(removed <= per_window * manager_.config().windows.size(), "more blocks go than the request has");
    promise(manager_.truncate_blocks(request, kept) == 0, "truncating twice finds more");
}

}  // namespace kvfix::testing
