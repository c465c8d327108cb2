// The 64-bit hash of a block, for events and remote lookup. The same on every machine, process and version:
//
//   fold(a, b)     = low ^ high half of the 128-bit product a * b
//   words(t)       = tokens t[0..n) as little-endian 64-bit words, two int32 tokens a word, zero-padded to an even number of words
//   digest(t)      = n * K5 + sum over i of fold(w[2i] ^ (K1 + i * K3), w[2i+1] ^ (K2 + i * K4))          (mod 2^64)
//   bytes(s)       = the same sum over the bytes s as little-endian words, with n = length in bytes
//   root           = mix(bytes(identity))        identity: see Request::identity
//   block          = mix(fold(parent ^ K1, digest(tokens) ^ K2) + parent + bytes(extras))     extras left out where there are none
//   mix(x)         = fold(x ^ K3, K4) ^ (x >> 32)
//
// It is fast, not cryptographic. Reuse never trusts it: candidates are compared by parent and content.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/types.h"

namespace kvfix {

std::uint64_t hash_root(std::string_view identity);
std::uint64_t hash_block(std::uint64_t parent_hash, std::span<const TokenId> tokens, std::string_view extras);

}  // namespace kvfix
