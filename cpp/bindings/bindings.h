// One function per topic; module.cc calls them in order. Nothing here decides anything: it converts, releases the GIL around
// plain values, and calls the core.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "core/request.h"
#include "core/types.h"

namespace kvfix::bindings {

// The Python object owns a share of the request, not the other way round: a sequence may let go of it without the GIL.
struct SequenceRequest {
    RequestPtr request;
};

void bind_errors(nanobind::module_& module);
void bind_config(nanobind::module_& module);
void bind_request(nanobind::module_& module);
void bind_results(nanobind::module_& module);
void bind_stats(nanobind::module_& module);
void bind_manager(nanobind::module_& module);
void bind_device(nanobind::module_& module);
void bind_staging(nanobind::module_& module);
void bind_offload(nanobind::module_& module);
void bind_turn_lock(nanobind::module_& module);

const char* tier_name(Tier tier);
std::optional<Tier> tier_from(const std::optional<std::string>& name);

template <class Call>
auto without_gil(Call&& call) {
    const nanobind::gil_scoped_release released;
    return call();
}

}  // namespace kvfix::bindings
