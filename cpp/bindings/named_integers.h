// Integer arguments that are refused by their own name: nanobind alone would only list the signature.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "bindings/integers.h"

namespace kvfix::bindings {

template <std::size_t size>
struct ArgumentName {
    // NOLINTNEXTLINE(misc-explicit-constructor): a literal stands for it
    constexpr ArgumentName(const char (&name)[size]) { std::copy_n(name, size, text); }
    char text[size];
};

// T is a type that read_integer() reads, or an optional of one: then None is taken as well.
template <class T, ArgumentName argument>
struct Named {
    // NOLINTNEXTLINE(misc-explicit-constructor): it is the number, once it has been read
    operator T() const { return value; }
    T value{};
};

template <ArgumentName argument>
using NamedId = Named<std::uint64_t, argument>;
using NamedRequest = NamedId<"request_id">;
using NamedLora = Named<std::optional<std::int64_t>, "lora_id">;

}  // namespace kvfix::bindings

namespace nanobind::detail {

template <class T, kvfix::bindings::ArgumentName argument>
struct type_caster<kvfix::bindings::Named<T, argument>> {
    using Number = kvfix::bindings::Named<T, argument>;
    static constexpr bool kTakesNone = !std::is_integral_v<T>;
    NB_TYPE_CASTER(Number, const_name("int"))

    bool from_python(handle object, std::uint8_t, cleanup_list*) {
        if constexpr (kTakesNone) {
            value.value = kvfix::bindings::read_optional_integer<typename T::value_type>(object, {argument.text});
        } else {
            value.value = kvfix::bindings::read_integer<T>(object, {argument.text});
        }
        return true;
    }
};

}  // namespace nanobind::detail
