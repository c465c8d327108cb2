// Arrays of integers of other programs, strided or not, read into vectors. With the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/integers.h"

namespace kvfix::bindings {

// A sequence has no more tokens, and no call more of anything.
inline constexpr std::size_t kIntegersMost = std::numeric_limits<std::int32_t>::max();

[[noreturn]] inline void bad_value(const Field& field, const std::string& why) {
    throw nanobind::value_error((field.text() + ": " + why).c_str());
}

template <class T>
[[noreturn]] void out_of_range(const Field& field, std::size_t position, const std::string& value) {
    bad_value(field, "value " + value + " at position " + std::to_string(position) + " is out of range: 0 to " +
                         std::to_string(std::numeric_limits<T>::max()));
}

struct IntegerArray {
    const char* data;
    std::size_t count;
    std::ptrdiff_t stride_bytes;
    std::size_t item_bytes;
    bool is_signed;
};

// Whether the array holds T as C++ lays it out.
template <class T>
bool is_plain(const IntegerArray& array) {
    return array.item_bytes == sizeof(T) && array.is_signed == std::is_signed_v<T> && array.stride_bytes == sizeof(T) &&
           reinterpret_cast<std::uintptr_t>(array.data) % alignof(T) == 0;
}

template <class T, class Item>
void copy_items(const IntegerArray& array, const Field& field, std::vector<T>& out) {
    const auto item_at = [&](std::size_t i, std::ptrdiff_t stride_bytes) {
        Item item;
        std::memcpy(&item, array.data + static_cast<std::ptrdiff_t>(i) * stride_bytes, sizeof item);
        return item;
    };
    const auto copy = [&](std::ptrdiff_t stride_bytes) {
        bool fit = true;
        for (std::size_t i = 0; i < array.count; ++i) {  // no early exit, so that an array without gaps vectorises
            const Item item = item_at(i, stride_bytes);
            fit &= std::in_range<T>(item);
            out[i] = static_cast<T>(item);
        }
        return fit;
    };
    const bool fit = array.stride_bytes == sizeof(Item) ? copy(sizeof(Item)) : copy(array.stride_bytes);
    for (std::size_t i = 0; !fit && i < array.count; ++i) {
        if (const Item item = item_at(i, array.stride_bytes); !std::in_range<T>(item)) {
            out_of_range<T>(field, i, std::to_string(item));
        }
    }
}

template <class T>
std::vector<T> read_array(const IntegerArray& array, const Field& field) {
    if (array.count > kIntegersMost) {  // a few bytes may say so of themselves: np.broadcast_to(0, 2**40)
        bad_value(field,
                  std::to_string(array.count) + " values are over the limit of " + std::to_string(kIntegersMost));
    }
    if (is_plain<T>(array)) {
        const T* begin = reinterpret_cast<const T*>(array.data);
        return {begin, begin + array.count};  // writes each element once, unlike a vector that is filled later
    }
    std::vector<T> out(array.count);
    if (array.item_bytes == 4) {
        array.is_signed ? copy_items<T, std::int32_t>(array, field, out)
                        : copy_items<T, std::uint32_t>(array, field, out);
    } else {
        array.is_signed ? copy_items<T, std::int64_t>(array, field, out)
                        : copy_items<T, std::uint64_t>(array, field, out);
    }
    return out;
}

}  // namespace kvfix::bindings
