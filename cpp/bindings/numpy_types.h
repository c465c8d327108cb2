// Knows which of numpy's dtypes are plain integers. numpy has one object for each of them, so an array's dtype says
// what its items are without a look at a format. They are learned from arrays as they come; numpy itself is never
// imported for it. Callers hold the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <optional>

namespace kvfix::bindings {

struct ItemType {
    std::size_t bytes;  // 4 or 8
    bool is_signed;
};

class NumpyTypes {
  public:
    // Nothing for what is no array of numpy's own type, and for a dtype that has not been learned.
    std::optional<ItemType> type_of(nanobind::handle object) const;
    // The array's items have been found to be of that type.
    void learn(nanobind::handle object, ItemType type);

  private:
    bool is_array(nanobind::handle object) const;

    static constexpr std::array<ItemType, 4> kTypes{{{4, false}, {4, true}, {8, false}, {8, true}}};
    // References that are never given back: a dtype that was freed might leave its address to another. Set once.
    std::atomic<PyObject*> array_type_{nullptr};
    std::array<std::atomic<PyObject*>, kTypes.size()> dtypes_{};
};

NumpyTypes& numpy_types();

}  // namespace kvfix::bindings
