#include <nanobind/stl/string.h>

#include <chrono>
#include <string>

#include "bindings/bindings.h"
#include "bindings/repr.h"
#include "core/turn_lock.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

bool acquire(TurnLock& lock, double limit_s) {
    // The usual case costs no release of the GIL.
    return lock.try_acquire() ||
           without_gil([&] { return lock.acquire_within(std::chrono::duration<double>(limit_s)); });
}

std::string text_of(const char* name, const TurnLock::Stats& stats) {
    return Repr(name)
        .add("depth", stats.depth)
        .add("queued", stats.queued)
        .add("turns", stats.turns)
        .add("waits", stats.waits)
        .add("wait_us", stats.wait_us)
        .text();
}

}  // namespace

void bind_turn_lock(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<TurnLock::Stats>(m, "TurnLockStats", "Since the lock was made.")
        .def_ro("turns", &TurnLock::Stats::turns, "Times that the lock went from free to held.")
        .def_ro("waits", &TurnLock::Stats::waits, "Calls that had to queue.")
        .def_ro("wait_us", &TurnLock::Stats::wait_us, "What they waited in sum.")
        .def_ro("queued", &TurnLock::Stats::queued, "Calls that wait now.")
        .def_ro("depth", &TurnLock::Stats::depth, "How often its holder holds the lock now. 0: nobody does.")
        .def("__repr__", [](const TurnLock::Stats& s) { return text_of("TurnLockStats", s); });
    nb::class_<TurnLock>(m, "TurnLock", "A recursive lock, first come first served, waited for without the GIL.")
        .def(nb::init<>())
        .def("acquire", &acquire, "limit_s"_a, "False: the limit passed, and the lock is not held.")
        .def("release", &TurnLock::release, "Once for each time it was acquired, by the same thread.")
        .def("stats", &TurnLock::stats, "Turns and waits.")
        .def("__repr__", [](const TurnLock& lock) { return text_of("TurnLock", lock.stats()); });
}

}  // namespace kvfix::bindings
