#include "device/sim_copies.h"

#include "kernels/relaxed.h"

namespace kvfix {
namespace {

std::size_t pitched_bytes(std::size_t pitch, const RowCopy& copy) {
    if (copy.rows == 0) {
        return 0;
    }
    if (copy.rows > 1 && pitch < copy.row_bytes) {
        throw DeviceError("copy_rows: rows of " + std::to_string(copy.row_bytes) + " bytes do not fit a pitch of " +
                          std::to_string(pitch) + " bytes");
    }
    const std::size_t before_last = checked_bytes({copy.rows - 1, pitch});
    std::size_t bytes = 0;
    if (__builtin_add_overflow(before_last, copy.row_bytes, &bytes)) {
        throw DeviceError("copy_rows: " + std::to_string(copy.rows) + " rows of " + std::to_string(copy.row_bytes) +
                          " bytes reach beyond the last address");
    }
    return bytes;
}

}  // namespace

void require_spans(std::span<const CopySpan> spans, const SimMemory::Access& access) {
    for (const CopySpan& span : spans) {
        access.require(span.src, span.bytes, "copy source");
        access.require(span.dst, span.bytes, "copy destination");
    }
}

void copy_spans(std::span<const CopySpan> spans, const SimMemory::Access& access) {
    require_spans(spans, access);
    for (const CopySpan& span : spans) {
        copy_relaxed(span.dst, span.src, span.bytes);
    }
}

void require_rows(const RowCopy& copy, const SimMemory::Access& access) {
    access.require(copy.src, pitched_bytes(copy.src_pitch, copy), "copy_rows source");
    access.require(copy.dst, pitched_bytes(copy.dst_pitch, copy), "copy_rows destination");
}

void copy_rows(const RowCopy& copy, const SimMemory::Access& access) {
    require_rows(copy, access);
    for (std::size_t row = 0; row < copy.rows; ++row) {
        copy_relaxed(copy.dst + row * copy.dst_pitch, copy.src + row * copy.src_pitch, copy.row_bytes);
    }
}

std::vector<std::uint8_t> prefetch(std::span<const CopySpan> spans, const SimMemory::Access& access) {
    require_spans(spans, access);
    std::size_t bytes = 0;
    for (const CopySpan& span : spans) {
        bytes += span.bytes;
    }
    std::vector<std::uint8_t> sources(bytes);
    auto next = reinterpret_cast<std::uintptr_t>(sources.data());
    for (const CopySpan& span : spans) {
        copy_relaxed(next, span.src, span.bytes);
        next += span.bytes;
    }
    return sources;
}

void deliver(std::span<const CopySpan> spans, const std::vector<std::uint8_t>& sources,
             const SimMemory::Access& access) {
    require_spans(spans, access);
    auto next = reinterpret_cast<std::uintptr_t>(sources.data());
    for (const CopySpan& span : spans) {
        copy_relaxed(span.dst, next, span.bytes);
        next += span.bytes;
    }
}

}  // namespace kvfix
