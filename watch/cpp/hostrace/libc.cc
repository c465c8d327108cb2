#include "hostrace/libc.h"

#include <gnu/lib-names.h>

#include <initializer_list>

namespace hostrace::libc {
namespace {

template <typename... Functions>
void find(Functions&... functions) {
    void* const library = dlopen(LIBC_SO, RTLD_LAZY | RTLD_NOLOAD);
    if (library != nullptr) {
        (functions.find_in(library), ...);
    }
}

// The dynamic linker has locks, too: a handler asks it for nothing.
[[gnu::constructor]] void find_before_a_handler_does() {
    find(backtrace, clock_gettime, mprotect, sched_yield, syscall);
}

}  // namespace

// It cannot look itself up: its versions are those of the C libraries that have it in one place or another.
Lookup linkers_lookup() {
    static constinit std::atomic<Lookup> known{nullptr};
    Lookup found = known.load(std::memory_order_relaxed);
    for (const char* version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"}) {
        found = found == nullptr ? reinterpret_cast<Lookup>(dlvsym(RTLD_NEXT, "dlsym", version)) : found;
    }
    known.store(found, std::memory_order_relaxed);
    return found;
}

}  // namespace hostrace::libc
