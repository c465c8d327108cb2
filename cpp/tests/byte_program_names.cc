// The calls of a ByteProgram that name blocks and forget them by name.
#include <algorithm>

#include "tests/byte_program.h"

namespace kvfix::testing {

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
