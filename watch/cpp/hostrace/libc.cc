#include "hostrace/libc.h"

#include <gnu/lib-names.h>

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
    find(backtrace, clock_gettime, close, mprotect, nanosleep, open, pread, read, sched_yield, syscall, write);
}

}  // namespace
}  // namespace hostrace::libc
