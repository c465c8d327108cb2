// The digest of a stretch of memory, in 64 bits under a key: the number of its bytes, and a summand for each piece. So
// threads may take the pieces in any order, and sums of parts add up.
//
// A summand is a pseudo-random number of the key, the piece's place and its content: pieces that are equal, zero or have
// changed places add other numbers, and two contents have one digest once in 2^64. A change within one word of 8 bytes
// shows for certain, since mixed() and the exclusive or with it are bijections. It is no protection against whoever
// knows the key.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define KVFIX_HOST_AND_DEVICE __host__ __device__
#else
#define KVFIX_HOST_AND_DEVICE
#endif

namespace kvfix {

struct DigestPiece {
    std::uint64_t first, second;
};

// Two rounds of multiplying and folding: every bit of the word reaches every bit of the result.
KVFIX_HOST_AND_DEVICE constexpr std::uint64_t mixed(std::uint64_t word) {
    constexpr std::uint64_t kFactor = 0xd6e8feb86659fd93;
    word = (word ^ (word >> 32)) * kFactor;
    word = (word ^ (word >> 32)) * kFactor;
    return word ^ (word >> 32);
}

KVFIX_HOST_AND_DEVICE constexpr std::uint64_t digest_summand(std::uint64_t key, std::uint64_t place,
                                                             const DigestPiece& piece) {
    constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
    return mixed(mixed(piece.first ^ mixed(key + place * kOdd)) ^ piece.second);
}

}  // namespace kvfix
