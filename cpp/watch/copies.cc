#include "watch/copies.h"

namespace kvfix::watch {
namespace {

struct Place {
    int type;
    const void* host;
    cuda::Address device;
    std::size_t x, y, z, pitch, height;
};

// Memory that is named as the host's, or by an address that may be anybody's. Device memory is not in our ranges.
Shape shape_of(const Place& place, std::size_t width, std::size_t rows, std::size_t slices) {
    Shape shape;
    std::uintptr_t begin = 0;
    if (place.type == cuda::kMemoryHost) {
        begin = reinterpret_cast<std::uintptr_t>(place.host);
    } else if (place.type == cuda::kMemoryUnified) {
        begin = place.device;
    } else {
        return shape;
    }
    shape.width = width;
    shape.pitch = place.pitch == 0 ? width : place.pitch;
    shape.rows = rows;
    shape.slice_pitch = shape.pitch * (place.height == 0 ? rows : place.height);
    shape.slices = slices;
    shape.begin = begin + place.z * shape.slice_pitch + place.y * shape.pitch + place.x;
    return shape;
}

Shape shape_of(const cuda::Operand3d& operand, const cuda::BatchCopy3d& copy) {
    if (operand.type != cuda::kOperandPointer) {
        return {};
    }
    const Place place{cuda::kMemoryUnified,        nullptr, operand.pointer.begin, 0, 0, 0, operand.pointer.row_length,
                      operand.pointer.layer_height};
    return shape_of(place, copy.width, copy.height, copy.depth);
}

}  // namespace

Sides sides_of(const cuda::Copy2d& copy) {
    return {shape_of({copy.src_type, copy.src_host, copy.src_device, copy.src_x, copy.src_y, 0, copy.src_pitch, 0},
                     copy.width, copy.height, 1),
            shape_of({copy.dst_type, copy.dst_host, copy.dst_device, copy.dst_x, copy.dst_y, 0, copy.dst_pitch, 0},
                     copy.width, copy.height, 1)};
}

Sides sides_of(const cuda::Copy3d& copy) {
    return {shape_of({copy.src_type, copy.src_host, copy.src_device, copy.src_x, copy.src_y, copy.src_z, copy.src_pitch,
                      copy.src_height},
                     copy.width, copy.height, copy.depth),
            shape_of({copy.dst_type, copy.dst_host, copy.dst_device, copy.dst_x, copy.dst_y, copy.dst_z, copy.dst_pitch,
                      copy.dst_height},
                     copy.width, copy.height, copy.depth)};
}

Sides sides_of(const cuda::BatchCopy3d& copy) { return {shape_of(copy.src, copy), shape_of(copy.dst, copy)}; }

Shape rectangle(std::uintptr_t begin, std::size_t width, std::size_t rows, std::size_t pitch) {
    Shape shape = line(begin, width);
    shape.rows = rows;
    shape.pitch = pitch;
    return shape;
}

Shape side_of(const cuda::MemsetNode& memset) {
    return rectangle(memset.dst, memset.width * memset.element_bytes, memset.height, memset.pitch);
}

}  // namespace kvfix::watch
