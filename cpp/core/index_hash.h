// The hash of a tree's indexes: a fast one, under keys that no caller sees, and whose values no caller sees either.
//
// What callers choose is compared by content in the end, so all that a bad hash costs is time. Time is what an attacker wants:
// contents that he can make collide turn an index into a list. Here he cannot, for whatever he chose, chose without the keys:
// - NH over the tokens (a sum of products of words, each with a key of its own added, mod 2^128) is equal for two contents
//   with a probability of 2^-64 over the keys.
// - The sum's halves, the parent's value and the extras' go through a multilinear hash, the upper half of a sum mod 2^128 of
//   words times 128-bit keys: any two inputs get independent, even values.
// - scattered() undoes the order that sums keep (contents in arithmetic progression have values in one), on which linear
//   probing clusters.
// All of this holds while no value shows: events, digests and errors never carry one.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/block_hash.h"
#include "core/types.h"

namespace kvfix {

class IndexHash {
  public:
    IndexHash(const Secret& seed, std::uint32_t tokens_per_block);

    std::uint64_t root(std::string_view identity) const;
    // Tells this seed's values from another's.
    const Secret& text_key() const { return text_key_; }
    // Of a block of tokens_per_block tokens (fewer are filled up) below what has the value `parent`.
    std::uint64_t block(std::uint64_t parent, std::span<const TokenId> tokens, std::string_view extras) const;
    std::uint64_t block_hash(const BlockHash& hash) const;

    static std::uint64_t scattered(std::uint64_t value) {
        value = (value ^ value >> 32) * 0x9e3779b97f4a7c15;
        return value ^ value >> 32;
    }

  private:
    __extension__ using Wide = unsigned __int128;

    std::uint64_t text(std::string_view bytes) const { return SipHash(text_key_).end(bytes).first; }

    Secret text_key_;
    std::vector<std::uint64_t> token_keys_;  // one for each two tokens
    struct Weights {
        Wide offset, low, high, parent, extras;
    } block_;
    struct HashWeights {
        Wide offset, first, second;
    } hash_;
};

}  // namespace kvfix
