// The hashes of a prompt's full blocks, for a caller that needs only some of them. Each is computed once, when it or a
// later one is asked for.
#pragma once

#include <cstdint>
#include <vector>

#include "core/block_hash.h"
#include "core/request.h"

namespace kvfix {

class PrefixHashes {
  public:
    PrefixHashes(RequestPtr request, const BlockHasher& hasher, std::uint32_t tokens_per_block);

    // The hash of the prompt up to the end of this full block, as block_hashes() shows it.
    BlockHash at(std::uint32_t block);

  private:
    const RequestPtr request_;
    const BlockHasher hasher_;
    const std::uint32_t tokens_per_block_;
    std::vector<BlockHash> known_;
};

}  // namespace kvfix
