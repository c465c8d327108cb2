// Reads Python's integers into plain C++ values, with the GIL held, so that the core can work without it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvfix::bindings {

// Names an argument in errors; the text is only built when one is raised.
struct Field {
    const char* name;
    std::optional<std::uint64_t> request_id = std::nullopt;

    std::string text() const { return request_id ? "request " + std::to_string(*request_id) + ", " + name : name; }
};

// Lists and tuples of ints, buffers (numpy, array.array, memoryview) and DLPack CPU tensors, all one-dimensional. Arrays may be
// strided. TypeError for what is not integers, ValueError for a value that does not fit
// and for a list that changes while it is read.
template <class T>
std::vector<T> read_integers(nanobind::handle object, const Field& field);

extern template std::vector<std::int32_t> read_integers(nanobind::handle, const Field&);
extern template std::vector<std::uint32_t> read_integers(nanobind::handle, const Field&);
extern template std::vector<std::uint64_t> read_integers(nanobind::handle, const Field&);

}  // namespace kvfix::bindings
