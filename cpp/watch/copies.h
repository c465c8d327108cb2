// The host sides of copies and memsets, read out of the arguments of the driver's calls and of graphs' nodes.
#pragma once

#include <optional>

#include "watch/driver_api.h"
#include "watch/use.h"

namespace kvfix::watch {

struct Sides {
    Shape src, dst;  // empty where that side is an array
};

inline Shape line(std::uintptr_t begin, std::size_t bytes) {
    Shape shape;
    shape.begin = begin;
    shape.width = bytes;
    return shape;
}

Sides sides_of(const cuda::Copy2d& copy);
Sides sides_of(const cuda::Copy3d& copy);
Sides sides_of(const cuda::BatchCopy3d& copy);
// Rows of `width` bytes.
Shape rectangle(std::uintptr_t begin, std::size_t width, std::size_t rows, std::size_t pitch);
Shape side_of(const cuda::MemsetNode& memset);

}  // namespace kvfix::watch
