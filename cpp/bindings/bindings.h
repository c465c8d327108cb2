// One function per topic; module.cc calls them in order. Bindings decide nothing: they convert, release the GIL around
// plain values, and call the core.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bindings/integers.h"
#include "core/request.h"
#include "core/types.h"

namespace kvfix::bindings {

// The Python object owns a share of the request, and not the other way round, because a sequence may drop its share
// without the GIL.
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
void bind_place(nanobind::module_& module);
void bind_staging(nanobind::module_& module);
void bind_offset_calls(nanobind::module_& module);
void bind_offload(nanobind::module_& module);
void bind_turn_lock(nanobind::module_& module);
void bind_tier_index(nanobind::module_& module);
void bind_flight_ring(nanobind::module_& module);
void bind_fill_books(nanobind::module_& module);
void bind_replay(nanobind::module_& module);

// Reads a salt, which keeps prefixes with equal tokens apart, as Python passes it.
Salt read_salt(nanobind::handle salt, const Field& field);
std::vector<ExtraKey> read_extra_keys(nanobind::handle keys, const Field& field);

// Makes a request of what Python says of it. Errors name the request and the field.
RequestPtr read_request(RequestId id, nanobind::handle tokens, std::uint32_t beam_width,
                        std::optional<std::int64_t> lora_id, nanobind::handle salt, nanobind::handle extra_keys,
                        const Retention* retention);

nanobind::object salt_object(const Salt& salt);

// Unpickling calls the object's type with these keywords, so a pickle is checked like a new object.
nanobind::tuple reduced(nanobind::handle object, const nanobind::dict& keywords);

const char* tier_name(Tier tier);
std::optional<Tier> tier_from(const std::optional<std::string>& name);

// Releases the GIL for a scope, as nanobind's guard does, and survives the interpreter's end. If a daemon thread wants
// the GIL back then, CPython (before 3.14) ends the thread with pthread_exit. That unwinds its stack and aborts the
// process at the first frame that must not throw, of which bindings have many. So this class stops the unwinding, and
// the thread stays until the process is gone.
class GilReleased {
  public:
    GilReleased() : state_(PyEval_SaveThread()) {}
    GilReleased(const GilReleased&) = delete;
    GilReleased& operator=(const GilReleased&) = delete;
    ~GilReleased() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {  // pthread_exit is unwinding: leaving this handler would abort
            stay_for_ever();
        }
    }

  private:
    [[noreturn]] static void stay_for_ever();
    PyThreadState* state_;
};

template <class Call>
auto without_gil(Call&& call) {
    const GilReleased released;
    return call();
}

}  // namespace kvfix::bindings
