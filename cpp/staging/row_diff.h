// Finds what differs between a live row and its shadow, exactly. Runs over every block in use of every iteration, so it takes the
// widest vectors that the machine has. It only looks: the shadow is brought up to date by whoever has staged what was found.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/calls.h"

namespace kvfix {

// How many entries are compared at once. `portable` runs everywhere; the compiler makes 128-bit vectors of it where it has them.
enum class DiffWidth : std::uint8_t { portable, avx2, avx512 };

// A stretch of a row and its shadow; `index` is the first entry's in the device table.
struct RowPiece {
    const std::int32_t* live = nullptr;
    const std::int32_t* shadow = nullptr;
    std::uint32_t count = 0;
    std::uint32_t index = 0;
};

// Rows are looked at in pieces of this many entries: a page of memory each, as far as hardware prefetches.
inline constexpr std::uint32_t kPieceMax = 1024;
// Wide stores write this far past what they found.
inline constexpr std::size_t kDiffSlack = 16;

// Writes an entry for every element that differs, in order, and returns how many. Every live element is read once: what is
// found is what is written. `out` has room for piece.count + kDiffSlack. `next` is fetched into the caches meanwhile; where rows
// lie apart no hardware would, and it may be any address.
using FindChanges = std::size_t (*)(const RowPiece& piece, const RowPiece& next, TableEntry* out);

bool can_diff(DiffWidth width);        // on this machine
FindChanges diff_by(DiffWidth width);  // must be one that can
FindChanges best_diff();

}  // namespace kvfix
