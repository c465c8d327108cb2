// Integers of 128 bits. Python's integers have any size; C++ gets two words. The caller holds the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "core/siphash.h"

namespace kvfix::bindings {

// Returns a new reference.
PyObject* python_int(std::uint64_t low, std::uint64_t high);
// Returns nothing unless the object is an int that is neither negative nor too large. A bool is not an int here.
std::optional<Hash128> words_of(nanobind::handle number);

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
