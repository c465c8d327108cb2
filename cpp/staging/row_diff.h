// Finds what differs between a live row and its shadow, and brings the shadow up to date. Runs over every block in use of every
// iteration, so it looks at sixteen entries at a time and only stops where one differs.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace kvfix {

inline constexpr std::size_t kDiffGroup = 16;

// One bit an entry that differs.
inline std::uint32_t differing(const std::int32_t* live, const std::int32_t* shadow) {
#ifdef __SSE2__
    const auto equal = [&](std::size_t at) {
        const auto a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(live + at));
        const auto b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(shadow + at));
        return _mm_cmpeq_epi32(a, b);
    };
    const __m128i low = _mm_packs_epi32(equal(0), equal(4));
    const __m128i high = _mm_packs_epi32(equal(8), equal(12));
    return ~static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(low, high))) & 0xffffU;
#else
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < kDiffGroup; ++i) {
        bits |= static_cast<std::uint32_t>(live[i] != shadow[i]) << i;
    }
    return bits;
#endif
}

// Calls emit(index, value) for every entry that differs, in order.
template <class Emit>
void update_shadow(const std::int32_t* live, std::int32_t* shadow, std::size_t count, Emit&& emit) {
    std::size_t begin = 0;
    for (; begin + kDiffGroup <= count; begin += kDiffGroup) {
        std::uint32_t bits = differing(live + begin, shadow + begin);
        if (bits == 0) [[likely]] {
            continue;
        }
        std::int32_t values[kDiffGroup];  // read once: what is emitted is what the shadow gets
        std::memcpy(values, live + begin, sizeof values);
        for (; bits != 0; bits &= bits - 1) {
            const auto at = static_cast<std::size_t>(std::countr_zero(bits));
            emit(begin + at, values[at]);
            shadow[begin + at] = values[at];
        }
    }
    for (; begin < count; ++begin) {
        if (const std::int32_t value = live[begin]; value != shadow[begin]) {
            emit(begin, value);
            shadow[begin] = value;
        }
    }
}

}  // namespace kvfix
