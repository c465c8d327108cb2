// The 128-bit hash of a block, for events and look-ups from outside. The same on every machine, process and version that has the
// same seed, and a random number to all others:
//
//   H(m)     = SipHash-1-3-128 of the bytes m, under the key SipHash-1-3-128(seed, "block hashes")
//   root     = H(0 | identity)                               identity: see Request::identity
//   block    = H(n | parent | tokens | extras)               n tokens, n > 0; extras: see Request::block_extras
//
// n and 0 are 64-bit words, `parent` the 16 bytes of the parent's hash, tokens 32-bit words padded with zeros to whole 64-bit
// words; all little-endian. No two contents give one message, and the first word keeps a root apart from a block whatever a
// tenant's salt spells. Reuse compares candidates by parent and content; only in a window, where what a block follows may have gone,
// does its hash stand for it.
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
    // Of what is shown, fewer than kBlockHashBits force collisions: a test instrument.
    explicit BlockHasher(const Secret& seed, std::uint32_t bits = kBlockHashBits);

    BlockHash root(std::string_view identity) const;
    BlockHash block(const BlockHash& parent, std::span<const TokenId> tokens, std::string_view extras) const;

    BlockHash shown(const BlockHash& hash) const { return {hash.first & mask_.first, hash.second & mask_.second}; }

  private:
    Secret key_;
    BlockHash mask_;
};

}  // namespace kvfix
