// The hashes of a prompt's full blocks, for callers that need only some of them. Each is computed once, when it or a
// later one is asked for.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "core/block_hash.h"
#include "core/request.h"

namespace kvfix {

class PrefixHashes {
  public:
    PrefixHashes(RequestPtr request, const BlockHasher& hasher, std::uint32_t tokens_per_block);

    RequestId request_id() const { return request_->id; }
    std::uint32_t size() const { return request_->num_tokens() / tokens_per_block_; }
    // The hash of the prompt up to this block's end, as block_hashes() shows it. Throws std::out_of_range. Any thread
    // may call it.
    BlockHash at(std::uint32_t block);

  private:
    const RequestPtr request_;
    const BlockHasher hasher_;
    const std::uint32_t tokens_per_block_;
    std::mutex mutex_;  // guards everything below
    std::vector<BlockHash> known_;
};

}  // namespace kvfix
