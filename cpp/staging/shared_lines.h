// The lines of a shipment: what of each plane of each row is in use. Both ways of staging walk over them, alone or with a team.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "staging/offset_shipment.h"

namespace kvfix {

// From this size on, help is worth waking somebody.
inline constexpr std::size_t kTeamBytesMin = std::size_t{256} * 1024;
// What one worker takes at a time: small, because the caller waits for the last one.
inline constexpr std::size_t kChunkBytes = std::size_t{32} * 1024;

// Calls work(begin, end), which must be noexcept, for stretches that together are [0, lines), each once.
template <class Work>
void share_lines(WorkerTeam* team, std::uint32_t lines, std::size_t bytes_per_line, const Work& work) {
    if (team == nullptr || team->workers() == 0 || lines * bytes_per_line < kTeamBytesMin) {
        work(0U, lines);
        return;
    }
    const auto lines_per_chunk =
        static_cast<std::uint32_t>(std::max<std::size_t>(1, kChunkBytes / std::max<std::size_t>(1, bytes_per_line)));
    team->run((lines + lines_per_chunk - 1) / lines_per_chunk, [&](std::uint32_t chunk) noexcept {
        const std::uint32_t begin = chunk * lines_per_chunk;
        work(begin, std::min(lines, begin + lines_per_chunk));
    });
}

}  // namespace kvfix
