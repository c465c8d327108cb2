// Numbers drawn from bytes, from a fuzzer's input or a seeded generator alike. After the last byte all numbers are
// zero.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvfix::testing {

class ByteReader {
  public:
    explicit ByteReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

    bool done() const { return bytes_.empty(); }

    // 0 .. bound-1, from one byte: bounds are small here.
    std::uint32_t below(std::uint32_t bound) { return byte() % bound; }
    std::uint32_t between(std::uint32_t low, std::uint32_t high) { return low + below(high - low + 1); }
    bool one_in(std::uint32_t n) { return below(n) == n - 1; }

    template <class T, std::size_t n>
    T pick(const std::array<T, n>& values) {
        return values[below(n)];
    }

  private:
    std::uint8_t byte() {
        if (bytes_.empty()) {
            return 0;
        }
        const std::uint8_t value = bytes_.front();
        bytes_ = bytes_.subspan(1);
        return value;
    }

    std::span<const std::uint8_t> bytes_;
};

}  // namespace kvfix::testing
