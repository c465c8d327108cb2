// Slots and block ids are plain integers in Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "core/types.h"

namespace nanobind::detail {

template <class Strong, class Number>
struct StrongCaster {
    NB_TYPE_CASTER(Strong, const_name("int"))

    static handle from_cpp(Strong value, rv_policy policy, cleanup_list* cleanup) {
        return make_caster<Number>::from_cpp(kvfix::number(value), policy, cleanup);
    }
};

template <>
struct type_caster<kvfix::SlotIndex> : StrongCaster<kvfix::SlotIndex, std::uint32_t> {};
template <>
struct type_caster<kvfix::BlockId> : StrongCaster<kvfix::BlockId, std::uint64_t> {};

}  // namespace nanobind::detail
