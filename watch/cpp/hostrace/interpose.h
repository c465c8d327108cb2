// How a function of the C library is called through us: ours stands in front of the next one of its name.
#pragma once

#include <dlfcn.h>
#include <unistd.h>
#include <cerrno>

#include <atomic>

#include "hostrace/libc.h"

#define HOSTRACE_EXPORT extern "C" __attribute__((visibility("default")))

namespace hostrace {

// Whether the program's calls come to ours. The driver loads the library wherever it is named; only a preload puts it in
// front. What stands before it, as what a sanitizer of clang links into the program does, has to pass calls on to it.
bool in_front();

// A call of this thread came to ours.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local bool came_to_us = false;

// In the place of a function that this C library does not have: programs look for such at run time, and find ours.
inline long missing() {
    errno = ENOSYS;
    return -1;
}

// The next definition of a function. All are looked up when the library is loaded: a look-up later would take the dynamic
// linker's lock, which a thread may have had when the process was forked, and what the program has not yet asked dlerror.
class AnyNext {
  public:
    constexpr explicit AnyNext(const char* name) : name_(name) {}
    void* find() {
        void* found = found_.load(std::memory_order_relaxed);
        if (found == nullptr) {
            found = libc::linkers_lookup()(RTLD_NEXT, name_);
            found = found == nullptr ? reinterpret_cast<void*>(missing) : found;
            found_.store(found, std::memory_order_relaxed);
        }
        return found;
    }

  private:
    const char* name_;
    std::atomic<void*> found_{nullptr};
};

template <typename F>
class Next : public AnyNext {
  public:
    using AnyNext::AnyNext;
    template <typename... Args>
    auto operator()(Args... args) {
        came_to_us = true;
        return reinterpret_cast<F*>(find())(args...);
    }
};

}  // namespace hostrace

// Each of them stands in a section of its own, where they are found when the library is loaded.
#define HOSTRACE_FOUND_AT_START [[gnu::section("hostrace_next")]] constinit
#define HOSTRACE_NEXT(function) HOSTRACE_FOUND_AT_START Next<decltype(::function)> next_##function(#function)

namespace hostrace {

// A call into the kernel by its number that is ours, and not the program's.
inline constinit libc::Own<decltype(::syscall)>& to_linux = libc::syscall;

}  // namespace hostrace
