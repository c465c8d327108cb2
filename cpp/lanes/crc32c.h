// CRC-32C (Castagnoli), as iSCSI and ext4 have it: for payloads that leave this machine and may come back changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvfix {

// The checksums of the ranges of `bytes` that begin at `starts`. Throws std::invalid_argument if one of them ends
// behind `bytes`. If the processor has the instruction, it computes three at a time: one alone waits for its own last
// step.
std::vector<std::uint32_t> crc32c_each(std::span<const std::uint8_t> bytes, std::span<const std::uint64_t> starts,
                                       std::size_t length);

// The same numbers by table, for processors without the instruction and for tests.
std::uint32_t crc32c_by_table(std::span<const std::uint8_t> bytes);

}  // namespace kvfix
