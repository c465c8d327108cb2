// BlockManager's class in Python. It has too many methods for one file, so each topic adds its own.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/integers.h"
#include "bindings/named_integers.h"
#include "core/block_manager.h"

namespace kvfix::bindings {

using ManagerClass = nanobind::class_<BlockManager>;

void bind_verbs(ManagerClass& manager);
void bind_decode_batch(nanobind::module_& module, ManagerClass& manager);
void bind_request_books(nanobind::module_& module);

template <class T>
std::optional<std::vector<T>> read_optional(nanobind::handle values, const char* field) {
    return values.is_none() ? std::nullopt : std::optional(read_integers<T>(values, {field}));
}

inline std::vector<BlockId> read_ids(nanobind::handle values, const Field& field) {
    std::vector<BlockId> ids;
    for (const std::uint64_t value : read_integers<std::uint64_t>(values, field)) {
        ids.push_back(BlockId{value});
    }
    return ids;
}

// A method that takes the id of a request alone.
template <auto method>
auto of_request() {
    return [](BlockManager& self, NamedRequest request_id) {
        return without_gil([&] { return (self.*method)(request_id); });
    };
}

}  // namespace kvfix::bindings
