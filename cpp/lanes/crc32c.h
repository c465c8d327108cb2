// CRC-32C (Castagnoli), as iSCSI and ext4 have it: for payloads that leave this machine and may come back changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvfix {

// Of each of the ranges of `bytes` that begin at `starts`. Throws std::invalid_argument where one of them ends behind `bytes`.
// Three at a time, where the processor has the instruction: one of them alone waits for its own last step.
std::vector<std::uint32_t> crc32c_each(std::span<const std::uint8_t> bytes, std::span<const std::uint64_t> starts,
                                       std::size_t length);

// By table. The same numbers, for processors without the instruction and for tests.
std::uint32_t crc32c_by_table(std::span<const std::uint8_t> bytes);

}  // namespace kvfix
