// The hash of a tree's indexes: a fast one, whose keys and values no caller ever sees.
//
// The index compares contents in the end, so a bad hash costs only time. But time is what an attacker wants: contents
// that collide turn an index into a list. Here nobody can make them collide without the keys:
// - NH over the tokens (a sum of products of words, each with a key of its own added, mod 2^128) is equal for two
//   contents with a probability of 2^-64 over the keys.
// - The sum's halves, the parent's value and the extras' value go through a multilinear hash: the upper half of a sum,
//   mod 2^128, of words times 128-bit keys. Any two inputs get independent, even values.
// - Sums keep order: contents in arithmetic progression have values in arithmetic progression, on which linear probing
//   clusters. scattered() undoes that.
// All of this holds only while no value shows, so events, digests and errors never carry one.
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
    // Differs between seeds, so it shows which seed a remembered value belongs to.
    const Secret& text_key() const { return text_key_; }
    // The value of a block of tokens_per_block tokens (fewer are padded) that follows a prefix with the value `parent`.
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
    std::vector<std::uint64_t> token_keys_;  // one for every two tokens
    struct Weights {
        Wide offset, low, high, parent, extras;
    } block_;
    struct HashWeights {
        Wide offset, first, second;
    } hash_;
};

}  // namespace kvfix
