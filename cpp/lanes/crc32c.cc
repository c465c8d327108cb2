#include "lanes/crc32c.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace kvfix {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli's, lowest bit first
constexpr std::size_t kTables = 8;

using Tables = std::array<std::array<std::uint32_t, 256>, kTables>;

constexpr Tables make_tables() {
    Tables tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t value = byte;
        for (int bit = 0; bit < 8; ++bit) {
            value = (value >> 1) ^ ((value & 1U) != 0 ? kPolynomial : 0U);
        }
        tables[0][byte] = value;
    }
    for (std::size_t table = 1; table < kTables; ++table) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const std::uint32_t before = tables[table - 1][byte];
            tables[table][byte] = (before >> 8) ^ tables[0][before & 0xff];
        }
    }
    return tables;
}

constexpr Tables kTable = make_tables();

std::uint64_t word_at(const std::uint8_t* data) {
    std::uint64_t word = 0;
    std::memcpy(&word, data, sizeof word);
    return word;
}

#if defined(__x86_64__)

constexpr std::size_t kLine = 64;
constexpr std::size_t kAhead = 1024;  // a quarter faster where no cache has the bytes

bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }

__attribute__((target("sse4.2"))) std::array<std::uint32_t, 3> three_by_instruction(
    const std::array<const std::uint8_t*, 3>& data, std::size_t length) {
    std::uint64_t a = ~0U;
    std::uint64_t b = ~0U;
    std::uint64_t c = ~0U;
    std::size_t at = 0;
    const auto words_until = [&](std::size_t end) __attribute__((target("sse4.2"))) {
        for (; at + 8 <= end; at += 8) {
            a = _mm_crc32_u64(a, word_at(data[0] + at));
            b = _mm_crc32_u64(b, word_at(data[1] + at));
            c = _mm_crc32_u64(c, word_at(data[2] + at));
        }
    };
    while (at + kAhead < length) {
        for (const std::uint8_t* one : data) {
            _mm_prefetch(reinterpret_cast<const char*>(one + at + kAhead), _MM_HINT_T0);
        }
        words_until(at + kLine);
    }
    words_until(length);
    std::array<std::uint32_t, 3> out{static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b),
                                     static_cast<std::uint32_t>(c)};
    for (; at < length; ++at) {
        for (std::size_t one = 0; one < out.size(); ++one) {
            out[one] = _mm_crc32_u8(out[one], data[one][at]);
        }
    }
    for (std::uint32_t& one : out) {
        one = ~one;
    }
    return out;
}

#else

bool has_instruction() { return false; }
std::array<std::uint32_t, 3> three_by_instruction(const std::array<const std::uint8_t*, 3>&, std::size_t) { return {}; }

#endif

}  // namespace

std::uint32_t crc32c_by_table(std::span<const std::uint8_t> bytes) {
    static_assert(std::endian::native == std::endian::little, "words are read as they lie");
    std::uint32_t value = ~0U;
    std::size_t at = 0;
    for (; at + 8 <= bytes.size(); at += 8) {
        const std::uint64_t word = word_at(bytes.data() + at) ^ value;
        value = 0;
        for (std::size_t byte = 0; byte < kTables; ++byte) {
            value ^= kTable[kTables - 1 - byte][(word >> (8 * byte)) & 0xff];
        }
    }
    for (; at < bytes.size(); ++at) {
        value = (value >> 8) ^ kTable[0][(value ^ bytes[at]) & 0xff];
    }
    return ~value;
}

std::vector<std::uint32_t> crc32c_each(std::span<const std::uint8_t> bytes, std::span<const std::uint64_t> starts,
                                       std::size_t length) {
    for (const std::uint64_t start : starts) {
        if (start > bytes.size() || length > bytes.size() - start) {
            throw std::invalid_argument("crc32c: " + std::to_string(length) + " bytes from " + std::to_string(start) +
                                        " on, of " + std::to_string(bytes.size()));
        }
    }
    std::vector<std::uint32_t> out;
    out.reserve(starts.size());
    const bool fast = has_instruction();
    std::size_t at = 0;
    for (; fast && at < starts.size(); at += 3) {
        const std::size_t count = std::min<std::size_t>(starts.size() - at, 3);
        const auto data = [&](std::size_t one) { return bytes.data() + starts[at + std::min(one, count - 1)]; };
        const auto three = three_by_instruction({data(0), data(1), data(2)}, length);  // one takes as long as three
        out.insert(out.end(), three.begin(), three.begin() + static_cast<std::ptrdiff_t>(count));
    }
    for (; at < starts.size(); ++at) {
        out.push_back(crc32c_by_table(bytes.subspan(starts[at], length)));
    }
    return out;
}

}  // namespace kvfix
