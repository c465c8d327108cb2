// Copies on the simulated device. The require functions judge addresses, at the call and again when the copy executes.
// They throw DeviceError before a byte has moved.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/sim_memory.h"

namespace kvfix {

void require_spans(std::span<const CopySpan> spans, const SimMemory::Access& access);
void copy_spans(std::span<const CopySpan> spans, const SimMemory::Access& access);

void require_rows(const RowCopy& copy, const SimMemory::Access& access);
void copy_rows(const RowCopy& copy, const SimMemory::Access& access);

// For a batch whose sources are read early. Returns what they hold now, one after the other, for deliver() to write
// later.
std::vector<std::uint8_t> prefetch(std::span<const CopySpan> spans, const SimMemory::Access& access);
void deliver(std::span<const CopySpan> spans, const std::vector<std::uint8_t>& sources,
             const SimMemory::Access& access);

}  // namespace kvfix
