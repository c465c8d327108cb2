// The host sides of copies and memsets, read out of the arguments of the driver's calls and of graphs' nodes.
#pragma once

#include "hostrace/driver_api.h"
#include "hostrace/use.h"

namespace hostrace {

struct Sides {
    Shape src, dst;  // at 0 where that side is an array
};

inline Shape line(std::uintptr_t begin, std::size_t bytes) {
    Shape shape;
    shape.begin = begin;
    shape.width = bytes;
    return shape;
}

// Rows of `width` bytes.
inline Shape rectangle(std::uintptr_t begin, std::size_t width, std::size_t rows, std::size_t pitch) {
    Shape shape = line(begin, width);
    shape.rows = rows;
    shape.pitch = pitch;
    return shape;
}

inline Shape box(std::uintptr_t begin, std::size_t pitch, std::size_t height, std::size_t width, std::size_t rows,
                 std::size_t slices) {
    Shape shape = rectangle(begin, width, rows, pitch == 0 ? width : pitch);
    shape.slice_pitch = shape.pitch * (height == 0 ? rows : height);
    shape.slices = slices;
    return shape;
}

inline Shape from(Shape shape, std::size_t x, std::size_t y, std::size_t z) {
    if (shape.begin != 0) {  // as that of an array
        shape.begin += z * shape.slice_pitch + y * shape.pitch + x;
    }
    return shape;
}

// Memory that is named as the host's, or by an address that may be anybody's. Device memory is not in our ranges.
template <typename Side>
std::uintptr_t address_of(const Side& side) {
    return side.type == cuda::kMemoryHost ? side.host : side.type == cuda::kMemoryUnified ? side.device : 0;
}

inline Shape shape_of(const cuda::Copy2d::Side& side, const cuda::Copy2d& copy) {
    return from(box(address_of(side), side.pitch, 0, copy.width, copy.height, 1), side.x, side.y, 0);
}

inline Shape shape_of(const cuda::Copy3d::Side& side, const cuda::Copy3d& copy) {
    const Shape whole = box(address_of(side), side.pitch, side.height, copy.width, copy.height, copy.depth);
    return from(whole, side.x, side.y, side.z);
}

inline Shape shape_of(const cuda::Operand3d& side, const cuda::BatchCopy3d& copy) {
    const std::uintptr_t begin = side.type == cuda::kOperandPointer ? side.begin : 0;
    return box(begin, side.row_length, side.layer_height, copy.width, copy.height, copy.depth);
}

template <typename Copy>
Sides sides_of(const Copy& copy) {
    return {shape_of(copy.src, copy), shape_of(copy.dst, copy)};
}

inline Shape side_of(const cuda::MemsetNode& memset) {
    return rectangle(memset.dst, memset.width * memset.element_bytes, memset.height, memset.pitch);
}

}  // namespace hostrace
