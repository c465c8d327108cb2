// The 128-bit hash of a block, for events and for look-ups from outside. It is the same on every machine, in every
// process and version that has the same seed. Without the seed it looks like a random number:
//
//   H(m)     = SipHash-1-3-128 of the bytes m, under the key SipHash-1-3-128(seed, "block hashes")
//   root     = H(0 | identity)                               identity: see Request::identity
//   block    = H(n | parent | tokens | extras)               n tokens, n > 0; extras: see Request::block_extras
//
// n and 0 are 64-bit words, `parent` is the 16 bytes of the parent's hash, and tokens are 32-bit words, padded with
// zeros to whole 64-bit words. Everything is little-endian. Different contents never give the same message: the first
// word distinguishes a root from a block, whatever a tenant's salt spells. Reuse compares candidates by parent and
// content. Only in a window, where the blocks before a block may be gone, does the hash stand for them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/siphash.h"
#include "core/types.h"

namespace kvfix {

using BlockHash = Hash128;

inline constexpr std::uint32_t kBlockHashBits = 128;

class BlockHasher {
  public:
    // `bits` limits how much of a hash shown() gives out. Fewer than kBlockHashBits force collisions, for tests.
    explicit BlockHasher(const Secret& seed, std::uint32_t bits = kBlockHashBits);

    BlockHash root(std::string_view identity) const;
    BlockHash block(const BlockHash& parent, std::span<const TokenId> tokens, std::string_view extras) const;

    BlockHash shown(const BlockHash& hash) const { return {hash.first & mask_.first, hash.second & mask_.second}; }

  private:
    Secret key_;
    BlockHash mask_;
};

}  // namespace kvfix
