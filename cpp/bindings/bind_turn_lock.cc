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
    // In the usual case the GIL is not released.
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
    nb::class_<TurnLock::Stats>(m, "TurnLockStats", "Counts since the lock was made.")
        .def_ro("turns", &TurnLock::Stats::turns, "How often the lock went from free to held.")
        .def_ro("waits", &TurnLock::Stats::waits, "Calls that had to queue.")
        .def_ro("wait_us", &TurnLock::Stats::wait_us, "The total time that they waited.")
        .def_ro("queued", &TurnLock::Stats::queued, "Calls that are waiting now.")
        .def_ro("depth", &TurnLock::Stats::depth, "How often the holder holds the lock now. 0: nobody holds it.")
        .def("__repr__", [](const TurnLock::Stats& s) { return text_of("TurnLockStats", s); });
    nb::class_<TurnLock>(m, "TurnLock",
                         "A recursive lock that serves first come, first served. Callers wait without the GIL.")
        .def(nb::init<>())
        .def("acquire", &acquire, "limit_s"_a, "False: the limit has passed, and the lock is not held.")
        .def("release", &TurnLock::release,
             "Call it once for each time that the lock was acquired, in the same thread.")
        .def("stats", &TurnLock::stats, "Counts of turns and waits.")
        .def("__repr__", [](const TurnLock& lock) { return text_of("TurnLock", lock.stats()); });
}

}  // namespace kvfix::bindings
