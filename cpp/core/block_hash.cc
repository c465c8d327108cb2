#include "core/block_hash.h"

#include <bit>
#include <cstring>

namespace kvfix {
namespace {

static_assert(std::endian::native == std::endian::little, "block hashes are defined over little-endian words");

constexpr std::uint64_t kK1 = 0x9e3779b97f4a7c15;
constexpr std::uint64_t kK2 = 0xd1b54a32d192ed03;
constexpr std::uint64_t kK3 = 0xabc98388fb8fac03;
constexpr std::uint64_t kK4 = 0x8bb84b93962eacc9;
constexpr std::uint64_t kK5 = 0x2d358dccaa6c78a5;

__extension__ using Wide = unsigned __int128;

std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t mix(std::uint64_t x) { return fold(x ^ kK3, kK4) ^ (x >> 32); }

// The sum of the header over `bytes` bytes; `count` is what n stands for.
std::uint64_t digest(const void* data, std::size_t bytes, std::uint64_t count) {
    const auto* at = static_cast<const unsigned char*>(data);
    std::uint64_t sum = count * kK5;
    std::uint64_t key_even = kK1;
    std::uint64_t key_odd = kK2;
    std::uint64_t words[2];
    for (; bytes >= sizeof words; bytes -= sizeof words, at += sizeof words) {
        std::memcpy(words, at, sizeof words);
        sum += fold(words[0] ^ key_even, words[1] ^ key_odd);
        key_even += kK3;
        key_odd += kK4;
    }
    if (bytes != 0) {
        words[0] = words[1] = 0;
        std::memcpy(words, at, bytes);
        sum += fold(words[0] ^ key_even, words[1] ^ key_odd);
    }
    return sum;
}

}  // namespace

std::uint64_t hash_root(std::string_view identity) {
    return mix(digest(identity.data(), identity.size(), identity.size()));
}

std::uint64_t hash_block(std::uint64_t parent_hash, std::span<const TokenId> tokens, std::string_view extras) {
    std::uint64_t sum =
        fold(parent_hash ^ kK1, digest(tokens.data(), tokens.size_bytes(), tokens.size()) ^ kK2) + parent_hash;
    if (!extras.empty()) {
        sum += digest(extras.data(), extras.size(), extras.size());
    }
    return mix(sum);
}

}  // namespace kvfix
