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

// Single numbers arrive in a wide type, so that one that does not fit is refused by name and not as an argument of the
// wrong type.
template <class T>
T narrowed(std::int64_t value, const Field& field) {
    if (!std::in_range<T>(value)) {
        throw std::invalid_argument(field.text() + " is " + std::to_string(value) + ": 0 to " +
                                    std::to_string(std::numeric_limits<T>::max()));
    }
    return static_cast<T>(value);
}

template <class T>
std::optional<T> narrowed(std::optional<std::int64_t> value, const Field& field) {
    return value ? std::optional(narrowed<T>(*value, field)) : std::nullopt;
}

// Reads one int, or what Python takes for one. Raises TypeError for anything else, and ValueError if it does not fit.
template <class T>
T read_integer(nanobind::handle object, const Field& field);

extern template std::uint32_t read_integer(nanobind::handle, const Field&);
extern template std::uint64_t read_integer(nanobind::handle, const Field&);
extern template std::int64_t read_integer(nanobind::handle, const Field&);

// Reads lists and tuples of ints, buffers (numpy, array.array, memoryview) and DLPack CPU tensors, all one-dimensional.
// Arrays may be strided. Raises TypeError for anything but integers, and ValueError for a value that does not fit or a
// list that changes while it is read.
template <class T>
std::vector<T> read_integers(nanobind::handle object, const Field& field);

extern template std::vector<std::int32_t> read_integers(nanobind::handle, const Field&);
extern template std::vector<std::uint32_t> read_integers(nanobind::handle, const Field&);
extern template std::vector<std::uint64_t> read_integers(nanobind::handle, const Field&);

}  // namespace kvfix::bindings
