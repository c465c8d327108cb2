// What tensors say of their memory at every call. torch, from 2.10 on, gives native code DLPack's table of C functions:
// one call of it answers all questions. Elsewhere each question is a method call. In a server, whose other work has
// filled the caches since the last call, that is ten times as much.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace kvfix::bindings {

// The name of an attribute that is asked for at every shipment. Keep it for good.
nanobind::handle interned(const char* name);

std::uintptr_t data_ptr(nanobind::handle tensor);

constexpr std::size_t kDimensionsMax = 4;

// How a tensor lies in memory.
struct TensorLayout {
    std::size_t dimensions = 0;
    std::array<std::int64_t, kDimensionsMax> sizes{}, strides{};  // in elements

    // A stride says nothing where there is one of something.
    bool operator==(const TensorLayout& other) const;
};

// Whether it is int32, in the host's memory, begins at this address, and lies there in this way.
bool is_view(nanobind::handle tensor, std::uintptr_t address, const TensorLayout& layout);

// The numbers of a tensor of one dimension, int32, contiguous, in the host's memory. Nothing if it is anything else.
std::optional<std::span<const std::uint32_t>> host_numbers(nanobind::handle tensor);

// The stream on which this thread works with the tensor's device, as its framework has it. Nothing if the framework
// has no table, or the tensor is not on a GPU.
std::optional<std::uintptr_t> current_stream(nanobind::handle tensor);

// torch.int32 is "int32".
std::string dtype_of(nanobind::handle tensor);

}  // namespace kvfix::bindings
