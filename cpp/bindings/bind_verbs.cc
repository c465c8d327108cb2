// What a manager does beside admission and growth: preemption, and what is stored and dropped by name.
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/manager_class.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

void bind_preemption(ManagerClass& c) {
    using namespace nb::literals;
    using Nogil = nb::call_guard<GilReleased>;
    c.def("suspend_sequence", &BlockManager::suspend_sequence, Nogil(), "request_id"_a,
          "Swaps a live sequence out: its blocks are copied to host and given up in primary. Returns how many copies "
          "are "
          "queued. All or nothing: OutOfBlocks (tier 'host') where the host tier has no room, BlockInFlight where a "
          "block of the sequence has not arrived.")
        .def("resume_sequence", &BlockManager::resume_sequence, Nogil(), "request_id"_a,
             "Brings a suspended sequence back, as it was. Returns how many copies are queued. All or nothing: "
             "OutOfBlocks, BlockInFlight where a copy to host has not ended, ValueError where one was lost.")
        .def("blocks_to_resume", &BlockManager::blocks_to_resume, Nogil(), "request_id"_a,
             "Primary blocks, window by window, that resume_sequence would take of those free or cached.");
}

}  // namespace

void bind_verbs(ManagerClass& manager) { bind_preemption(manager); }

}  // namespace kvfix::bindings
