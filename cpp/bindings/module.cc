#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <unistd.h>

#include <map>
#include <string>

#include "bindings/bindings.h"
#include "kernels/embedded.h"

namespace {

std::map<std::string, std::string> build_info() {
#if defined(__clang__)
    const std::string compiler = "clang " __clang_version__;
#else
    const std::string compiler = "gcc " __VERSION__;
#endif
#ifdef KVFIX_NO_LOCK
    const std::string locks = "no";
#else
    const std::string locks = "yes";
#endif
#ifdef KVFIX_PAUSE_POINTS
    const std::string pause_points = "yes";
#else
    const std::string pause_points = "no";
#endif
#ifdef Py_LIMITED_API
    const std::string stable_abi = "yes";
#else
    const std::string stable_abi = "no";
#endif
#ifdef Py_GIL_DISABLED
    const std::string free_threaded = "yes";
#else
    const std::string free_threaded = "no";
#endif
    return {{"compiler", compiler},
            {"cplusplus", std::to_string(__cplusplus)},
            {"build_type", KVFIX_BUILD_TYPE},
            {"locks", locks},
            {"kernels", kvfix::kernels_built()},
            {"pause_points", pause_points},
            {"stable_abi", stable_abi},
            {"free_threaded", free_threaded}};
}

}  // namespace

void kvfix::bindings::GilReleased::stay_for_ever() {
    for (;;) {
        pause();
    }
}

// NB_MODULE defines the function that Python calls. It starts with nanobind's own code, which would point the state
// that all interpreters share at the importing one. So that function gets another name, and one that first checks the
// interpreter takes its place.
#define PyInit__core init_in_main_interpreter
NB_MODULE(_core, m) {
    m.doc() = "The native core of trtllm-kvfix. Import trtllm_kvfix.native instead.";
#ifdef NDEBUG
    // A server's process may end while caches of its frameworks still hold managers and stagers. That is not a leak,
    // and the server's log should not end with a report about it. Debug builds do report.
    nanobind::set_leak_warnings(false);
#endif
    m.def("build_info", &build_info, "How this extension was built.");
    kvfix::bindings::bind_errors(m);
    kvfix::bindings::bind_config(m);
    kvfix::bindings::bind_request(m);
    kvfix::bindings::bind_results(m);
    kvfix::bindings::bind_stats(m);
    kvfix::bindings::bind_manager(m);
    kvfix::bindings::bind_device(m);
    kvfix::bindings::bind_place(m);
    kvfix::bindings::bind_staging(m);
    kvfix::bindings::bind_offset_calls(m);
    kvfix::bindings::bind_offload(m);
    kvfix::bindings::bind_turn_lock(m);
    kvfix::bindings::bind_tier_index(m);
    kvfix::bindings::bind_flight_ring(m);
    kvfix::bindings::bind_fill_books(m);
    kvfix::bindings::bind_replay(m);
}
#undef PyInit__core

extern "C" NB_EXPORT PyObject* PyInit__core() {  // NOLINT(bugprone-reserved-identifier): Python chose the name
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        PyErr_SetString(PyExc_ImportError,
                        "trtllm_kvfix works in the main interpreter alone, and this is a subinterpreter");
        return nullptr;
    }
    return init_in_main_interpreter();
}
