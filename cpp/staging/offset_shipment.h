// One iteration's block offsets on their way to the device.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "device/device.h"
#include "kernels/calls.h"

namespace kvfix {

// v1: the K and V planes are final and travel as they are. v2: only the K plane holds page numbers, which are scaled on
// the way.
enum class OffsetLayout : std::uint8_t { v1, v2 };
constexpr std::uint32_t planes_of(OffsetLayout layout) { return layout == OffsetLayout::v1 ? 2 : 1; }

// The live table on the host, (pools, rows, 2, blocks). Others write it. The stager only reads it, and only during
// ship().
struct HostTable {
    const std::int32_t* data = nullptr;
    std::size_t pool_stride = 0;  // all strides in elements; blocks are contiguous
    std::size_t row_stride = 0;
    std::size_t plane_stride = 0;
    std::uint32_t pools = 0;
    std::uint32_t rows = 0;
    std::uint32_t blocks = 0;

    const std::int32_t* row(std::uint32_t pool, std::uint32_t row, std::uint32_t plane) const {
        return data + pool * pool_stride + row * row_stride + plane * plane_stride;
    }
    bool operator==(const HostTable&) const = default;
};

struct Shipment {
    OffsetDestination dst;
    HostTable table;
    std::span<const std::uint32_t> rows;  // numbers in the table; row i goes to row i of the destination
    std::uint32_t width = 0;              // blocks per row that matter
    StreamHandle stream;
    bool lent = false;  // the caller leaves the table alone until settle()
};

struct StagerConfig {
    OffsetLayout layout = OffsetLayout::v1;
    std::uint32_t num_pools = 1;
    std::uint32_t rows_max = 0;
    std::uint32_t blocks_max = 0;
    std::uint32_t slots = 3;
    PageScale scale{};                                                  // of v2
    std::optional<std::chrono::nanoseconds> late_after = std::nullopt;  // for early copies; if unset, the size decides

    std::size_t elements_max() const { return std::size_t{num_pools} * rows_max * planes_of(layout) * blocks_max; }
};

}  // namespace kvfix
