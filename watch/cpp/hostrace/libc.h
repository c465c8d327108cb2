// The C library's own functions, past all who stand in front of it: the program, a sanitizer, and ourselves. Handlers
// call these, and so does the code that has a lock that handlers take. A function of somebody else may want a lock that
// the interrupted code has, or make the very call into the kernel that the handler is there for.
#pragma once

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <ctime>

#include <atomic>

// The attributes of a declaration, such as nothrow, are no part of the type that is taken from it.
#pragma GCC diagnostic ignored "-Wignored-attributes"

namespace hostrace::libc {

// The dynamic linker's own dlsym: the program's comes to one of ours.
using Lookup = void* (*)(void* library, const char* name);
Lookup linkers_lookup();

template <typename F>
class Own {
  public:
    constexpr explicit Own(const char* name) : name_(name) {}
    template <typename... Args>
    auto operator()(Args... args) {
        void* found = found_.load(std::memory_order_relaxed);
        if (found == nullptr) {  // before our constructors have run
            found = linkers_lookup()(RTLD_NEXT, name_);
        }
        return reinterpret_cast<F*>(found)(args...);
    }
    void find_in(void* library) { found_.store(linkers_lookup()(library, name_), std::memory_order_relaxed); }

  private:
    const char* name_;
    std::atomic<void*> found_{nullptr};
};

#define HOSTRACE_OF_LIBC(function) inline constinit Own<decltype(::function)> function(#function)
HOSTRACE_OF_LIBC(backtrace);
HOSTRACE_OF_LIBC(clock_gettime);
HOSTRACE_OF_LIBC(mprotect);
HOSTRACE_OF_LIBC(sched_yield);
HOSTRACE_OF_LIBC(syscall);
#undef HOSTRACE_OF_LIBC

// In the C library's own, a thread that another has cancelled ends: in the middle of our books, or of the driver.
inline int open(const char* path, int flags) { return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, 0)); }
inline int close(int file) { return static_cast<int>(syscall(SYS_close, file)); }
inline ssize_t read(int file, void* to, std::size_t bytes) { return syscall(SYS_read, file, to, bytes); }
inline ssize_t pread(int file, void* to, std::size_t bytes, off_t at) {
    return syscall(SYS_pread64, file, to, bytes, at);
}
inline ssize_t write(int file, const void* from, std::size_t bytes) { return syscall(SYS_write, file, from, bytes); }
inline void nanosleep(const timespec& time) { syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &time, nullptr); }

}  // namespace hostrace::libc
