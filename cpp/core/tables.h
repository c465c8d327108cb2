// The block lists of sequences, as attention reads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/results.h"
#include "core/state.h"

namespace kvfix::tables {

std::vector<BlockIdTable> block_ids(const State& state, std::span<const RequestId> ids, WindowSize window_size);
// Throws std::invalid_argument, before anything is written, if the table is too small or a number exceeds int32.
void copy_offsets(const State& state, const OffsetTable& output, std::span<const RequestId> ids,
                  std::uint32_t beam_width, std::size_t row_begin, OffsetScale scale);

}  // namespace kvfix::tables
