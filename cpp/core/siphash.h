// SipHash-1-3 with 128 bits of output (Aumasson and Bernstein): a pseudo-random function of messages under a secret
// key. Without the key, outputs look like random numbers, however many messages an attacker chose and saw.
#pragma once

#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace kvfix {

static_assert(std::endian::native == std::endian::little, "messages are defined over little-endian words");

// A key, or the secret from which keys are derived.
struct Secret {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    bool operator==(const Secret&) const = default;
};

// The two halves as the published function writes them: the first eight bytes, then the others, each little-endian.
struct Hash128 {
    std::uint64_t first = 0;
    std::uint64_t second = 0;
    auto operator<=>(const Hash128&) const = default;
};

// A message is whole words, then a tail of any length.
class SipHash {
  public:
    explicit SipHash(const Secret& key)
        : v0_(key.low ^ 0x736f6d6570736575),
          v1_(key.high ^ 0x646f72616e646f6d ^ 0xee),
          v2_(key.low ^ 0x6c7967656e657261),
          v3_(key.high ^ 0x7465646279746573) {}

    void add(std::uint64_t word) {
        v3_ ^= word;
        round();
        v0_ ^= word;
        bytes_ += sizeof word;
    }
    // `bytes` is a multiple of eight.
    void add(const void* data, std::size_t bytes) {
        const auto* at = static_cast<const unsigned char*>(data);
        for (std::uint64_t word = 0; bytes != 0; bytes -= sizeof word, at += sizeof word) {
            std::memcpy(&word, at, sizeof word);
            add(word);
        }
    }
    Hash128 end(std::string_view tail = {}) {
        const std::size_t whole = tail.size() / 8 * 8;
        add(tail.data(), whole);
        tail.remove_prefix(whole);
        std::uint64_t last = (bytes_ + tail.size()) << 56;
        for (std::size_t i = 0; i < tail.size(); ++i) {
            last |= std::uint64_t{static_cast<unsigned char>(tail[i])} << 8 * i;
        }
        add(last);
        v2_ ^= 0xee;
        const std::uint64_t first = finish();
        v1_ ^= 0xdd;
        return {first, finish()};
    }

  private:
    void round() {
        v0_ += v1_;
        v1_ = std::rotl(v1_, 13) ^ v0_;
        v0_ = std::rotl(v0_, 32);
        v2_ += v3_;
        v3_ = std::rotl(v3_, 16) ^ v2_;
        v0_ += v3_;
        v3_ = std::rotl(v3_, 21) ^ v0_;
        v2_ += v1_;
        v1_ = std::rotl(v1_, 17) ^ v2_;
        v2_ = std::rotl(v2_, 32);
    }
    std::uint64_t finish() {
        round();
        round();
        round();
        return v0_ ^ v1_ ^ v2_ ^ v3_;
    }

    std::uint64_t v0_;
    std::uint64_t v1_;
    std::uint64_t v2_;
    std::uint64_t v3_;
    std::uint64_t bytes_ = 0;
};

// Derives a key for one purpose. It reveals nothing about the secret, nor about the keys for other purposes.
inline Secret key_for(const Secret& secret, std::string_view purpose) {
    const Hash128 out = SipHash(secret).end(purpose);
    return {out.first, out.second};
}

}  // namespace kvfix
