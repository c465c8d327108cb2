// Integers of 128 bits: Python's have any number, C++ gets two words. With the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <vector>

#include "bindings/integers.h"
#include "core/siphash.h"

namespace kvfix::bindings {

// A new reference.
PyObject* python_int(std::uint64_t low, std::uint64_t high);
// Nothing for what is no int, negative or too large. Bools are no ints.
std::optional<Hash128> words_of(nanobind::handle number);

// A list or tuple. TypeError for what is not, ValueError for an item that is no int of 128 bits; both name the field.
std::vector<Hash128> read_hashes(nanobind::handle hashes, const Field& field);

}  // namespace kvfix::bindings

namespace nanobind::detail {

template <>
struct type_caster<kvfix::Hash128> {
    NB_TYPE_CASTER(kvfix::Hash128, const_name("int"))

    bool from_python(handle number, std::uint8_t, cleanup_list*) {
        const auto words = kvfix::bindings::words_of(number);
        value = words.value_or(kvfix::Hash128{});
        return words.has_value();
    }
    static handle from_cpp(const kvfix::Hash128& hash, rv_policy, cleanup_list*) {
        return kvfix::bindings::python_int(hash.first, hash.second);
    }
};

}  // namespace nanobind::detail
