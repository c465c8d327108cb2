#include "staging/row_diff.h"

#include <bit>
#include <cstring>

#include "core/check.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace kvfix {
namespace {

constexpr std::uint32_t kLine = 64 / sizeof(std::int32_t);  // entries of a cache line

std::size_t find_one_by_one(const RowPiece& piece, std::uint32_t begin, std::uint32_t end, TableEntry* out) {
    std::size_t found = 0;
    for (std::uint32_t i = begin; i < end; ++i) {
        if (const std::int32_t value = piece.live[i]; value != piece.shadow[i]) {
            out[found++] = {piece.index + i, value};
        }
    }
    return found;
}

std::size_t find_portable(const RowPiece& piece, const RowPiece& next, TableEntry* out) {
    using Vector = std::int32_t __attribute__((vector_size(16)));
    Vector live[kLine / 4];
    Vector shadow[kLine / 4];
    std::size_t found = 0;
    const std::uint32_t whole = piece.count - piece.count % kLine;
    for (std::uint32_t at = 0; at < whole; at += kLine) {
        __builtin_prefetch(next.live + at);
        __builtin_prefetch(next.shadow + at);
        std::memcpy(live, piece.live + at, sizeof live);
        std::memcpy(shadow, piece.shadow + at, sizeof shadow);
        const Vector any =
            (live[0] ^ shadow[0]) | (live[1] ^ shadow[1]) | (live[2] ^ shadow[2]) | (live[3] ^ shadow[3]);
        std::uint64_t halves[2];
        std::memcpy(halves, &any, sizeof halves);
        if ((halves[0] | halves[1]) != 0) [[unlikely]] {
            std::int32_t values[kLine];
            std::memcpy(values, live, sizeof values);
            const RowPiece line{.live = values, .shadow = piece.shadow + at, .count = kLine, .index = piece.index + at};
            found += find_one_by_one(line, 0, kLine, out + found);
        }
    }
    return found + find_one_by_one(piece, whole, piece.count, out + found);
}

#ifdef __x86_64__

__attribute__((target("avx2,bmi"))) std::size_t find_avx2(const RowPiece& piece, const RowPiece& next,
                                                          TableEntry* out) {
    constexpr std::uint32_t kGroup = 32;
    std::size_t found = 0;
    const std::uint32_t whole = piece.count - piece.count % kGroup;
    for (std::uint32_t at = 0; at < whole; at += kGroup) {
        __builtin_prefetch(next.live + at);
        __builtin_prefetch(next.live + at + kLine);
        __builtin_prefetch(next.shadow + at);
        __builtin_prefetch(next.shadow + at + kLine);
        std::uint32_t same = 0;
        __m256i live[kGroup / 8];
        for (std::uint32_t part = 0; part < kGroup / 8; ++part) {
            live[part] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(piece.live + at) + part);
            const __m256i shadow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(piece.shadow + at) + part);
            const int equal = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(live[part], shadow)));
            same |= static_cast<std::uint32_t>(equal) << (8 * part);
        }
        if (~same == 0) [[likely]] {
            continue;
        }
        std::int32_t values[kGroup];
        std::memcpy(values, live, sizeof values);
        for (std::uint32_t bits = ~same; bits != 0; bits &= bits - 1) {
            const auto i = static_cast<std::uint32_t>(std::countr_zero(bits));
            out[found++] = {piece.index + at + i, values[i]};
        }
    }
    return found + find_one_by_one(piece, whole, piece.count, out + found);
}

// Index and value of the lanes in `which`, packed, as entries. Always writes sixteen; returns how many count.
__attribute__((target("avx512f,popcnt"))) inline std::size_t put_lanes(__mmask16 which, std::uint32_t first,
                                                                       __m512i values, TableEntry* out) {
    static_assert(sizeof(TableEntry) == 2 * sizeof(std::int32_t) && kDiffSlack == 16);
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i indices = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first)), lanes);
    const __m512i index = _mm512_maskz_compress_epi32(which, indices);
    const __m512i value = _mm512_maskz_compress_epi32(which, values);
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    _mm512_storeu_si512(out, _mm512_permutex2var_epi32(index, low, value));
    _mm512_storeu_si512(out + 8, _mm512_permutex2var_epi32(index, high, value));
    return static_cast<std::size_t>(std::popcount(static_cast<std::uint32_t>(which)));
}

// Scattered changes would make a branch per vector a coin toss: it is one per four, and those are done without any.
__attribute__((target("avx512f,popcnt"))) std::size_t find_avx512(const RowPiece& piece, const RowPiece& next,
                                                                  TableEntry* out) {
    constexpr std::uint32_t kParts = 4;
    constexpr std::uint32_t kGroup = kParts * kLine;
    __m512i live[kParts];
    __mmask16 differ[kParts];
    std::size_t found = 0;
    const std::uint32_t whole = piece.count - piece.count % kGroup;
    for (std::uint32_t at = 0; at < whole; at += kGroup) {
        for (std::uint32_t part = 0; part < kParts; ++part) {
            const std::uint32_t begin = at + part * kLine;
            __builtin_prefetch(next.live + begin);
            __builtin_prefetch(next.shadow + begin);
            live[part] = _mm512_loadu_si512(piece.live + begin);
            differ[part] = _mm512_cmpneq_epi32_mask(live[part], _mm512_loadu_si512(piece.shadow + begin));
        }
        if ((differ[0] | differ[1] | differ[2] | differ[3]) == 0) [[likely]] {
            continue;
        }
        for (std::uint32_t part = 0; part < kParts; ++part) {
            found += put_lanes(differ[part], piece.index + at + part * kLine, live[part], out + found);
        }
    }
    for (std::uint32_t at = whole; at < piece.count; at += kLine) {
        const std::uint32_t left = piece.count - at;
        const auto within = static_cast<__mmask16>(left >= kLine ? 0xffffU : (1U << left) - 1);
        const __m512i values = _mm512_maskz_loadu_epi32(within, piece.live + at);
        const __m512i shadow = _mm512_maskz_loadu_epi32(within, piece.shadow + at);
        found += put_lanes(_mm512_cmpneq_epi32_mask(values, shadow), piece.index + at, values, out + found);
    }
    return found;
}

#endif

}  // namespace

bool can_diff(DiffWidth width) {
#ifdef __x86_64__
    switch (width) {
        case DiffWidth::avx512:
            return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("popcnt") != 0;
        case DiffWidth::avx2:
            return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi") != 0;
        case DiffWidth::portable:
            break;
    }
#endif
    return width == DiffWidth::portable;
}

FindChanges diff_by(DiffWidth width) {
    check(can_diff(width), "this machine has no vectors of that width");
#ifdef __x86_64__
    switch (width) {
        case DiffWidth::avx512:
            return find_avx512;
        case DiffWidth::avx2:
            return find_avx2;
        case DiffWidth::portable:
            break;
    }
#endif
    return find_portable;
}

FindChanges best_diff() {
    static const FindChanges best = diff_by(can_diff(DiffWidth::avx512) ? DiffWidth::avx512
                                            : can_diff(DiffWidth::avx2) ? DiffWidth::avx2
                                                                        : DiffWidth::portable);
    return best;
}

}  // namespace kvfix
