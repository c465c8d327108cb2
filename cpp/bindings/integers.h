// Reads Python's integers into plain C++ values, with the GIL held, so that the core can work without it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace kvfix::bindings {

// Names an argument in errors; the text is only built when one is raised.
struct Field {
    const char* name;
    std::optional<std::uint64_t> request_id = std::nullopt;

    std::string text() const { return request_id ? "request " + std::to_string(*request_id) + ", " + name : name; }
};

// The object as an error message shows it. It never fails, although an integer of thousands of digits has no repr.
std::string shown(nanobind::handle object);

// Reads one int, or what Python takes for one. Raises TypeError for anything else, and ValueError if it does not fit.
template <class T>
T read_integer(nanobind::handle object, const Field& field);

extern template std::uint8_t read_integer(nanobind::handle, const Field&);
extern template std::uint32_t read_integer(nanobind::handle, const Field&);
extern template std::int32_t read_integer(nanobind::handle, const Field&);
extern template std::uint64_t read_integer(nanobind::handle, const Field&);
extern template std::int64_t read_integer(nanobind::handle, const Field&);

// The same, and None.
template <class T>
std::optional<T> read_optional_integer(nanobind::handle object, const Field& field) {
    return object.is_none() ? std::nullopt : std::optional(read_integer<T>(object, field));
}

// Reads lists and tuples of ints, buffers (numpy, array.array, memoryview) and DLPack CPU tensors, all one-dimensional.
// Arrays may be strided. Raises TypeError for anything but integers, and ValueError for a value that does not fit or a
// list that changes while it is read.
template <class T>
std::vector<T> read_integers(nanobind::handle object, const Field& field);

extern template std::vector<std::int64_t> read_integers(nanobind::handle, const Field&);
extern template std::vector<std::int32_t> read_integers(nanobind::handle, const Field&);
extern template std::vector<std::uint8_t> read_integers(nanobind::handle, const Field&);
extern template std::vector<std::uint32_t> read_integers(nanobind::handle, const Field&);
extern template std::vector<std::uint64_t> read_integers(nanobind::handle, const Field&);

}  // namespace kvfix::bindings
