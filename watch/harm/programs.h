// What the programs of this folder have in common: each is a function that says what it saw.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "cuda.h"

namespace harm {

// What each machine has its own way for: waiting for files, forking, a trap, a call into the kernel that goes through no
// function, as programs make that call it themselves, and code that returns 7.
#if defined(__x86_64__)
constexpr long kPollCall = SYS_poll, kEpollCall = SYS_epoll_wait;
constexpr std::array kForks{SYS_fork, SYS_vfork};
constexpr std::array<unsigned char, 6> kReturnsSeven{0xb8, 7, 0, 0, 0, 0xc3};
inline void trap() { __asm__ volatile("int3"); }
inline void divide_by(const int* number) { __asm__ volatile("cltd\nidivl %0" : : "m"(*number), "a"(7) : "rdx", "cc"); }
inline void copy_by_one_instruction(char* to, const char* from, std::size_t bytes) {
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}
inline long raw(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    register long sixth __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "+a"(number)
                     : "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "rcx", "r11", "memory");
    return number;
}
#elif defined(__aarch64__)
constexpr long kPollCall = SYS_ppoll, kEpollCall = SYS_epoll_pwait;
constexpr std::array<int, 0> kForks{};
constexpr std::array<unsigned char, 8> kReturnsSeven{0xe0, 0, 0x80, 0x52, 0xc0, 0x03, 0x5f, 0xd6};
inline void trap() { raise(SIGTRAP); }  // its own would come again when the handler has returned
inline void divide_by(const int* number) { *number == 0 ? raise(SIGFPE) : 0; }  // it would answer 0
inline void copy_by_one_instruction(char* to, const char* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
inline long raw(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
    register long call __asm__("x8") = number;
    register long result __asm__("x0") = a;
    register long second __asm__("x1") = b;
    register long third __asm__("x2") = c;
    register long fourth __asm__("x3") = d;
    register long fifth __asm__("x4") = e;
    register long sixth __asm__("x5") = f;
    __asm__ volatile("svc #0"
                     : "+r"(result)
                     : "r"(call), "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "memory");
    return result;
}
#endif

inline long address(const void* memory) { return reinterpret_cast<long>(memory); }
inline long raw_read(int file, char* to, long bytes) { return raw(SYS_read, file, address(to), bytes); }

inline std::map<std::string, int (*)()>& programs() {
    static std::map<std::string, int (*)()> all;
    return all;
}

#define PROGRAM(name)                                                            \
    int name();                                                                  \
    [[maybe_unused]] const bool name##_known = (programs()[#name] = name, true); \
    int name()

inline void say(const char* what, long result) {
    std::printf("%s %ld %s\n", what, result, result < 0 ? std::strerror(errno) : "");
}

// Such calls, and the handlers that they may wake, leave errno alone.
constexpr int kErrno = EXDEV;
template <typename... Arguments>
void say_raw(const char* what, Arguments... arguments) {
    errno = kErrno;
    const long result = raw(arguments...);
    std::printf("%s %ld%s\n", what, result, errno == kErrno ? "" : ", and it set errno");
}

// Memory that nobody has pinned yet.
constexpr int kOfItsOwn = MAP_PRIVATE | MAP_ANONYMOUS;
inline char* mapped(std::size_t bytes, int protection = PROT_READ | PROT_WRITE, int flags = kOfItsOwn,
                    void* at = nullptr) {
    return static_cast<char*>(mmap(at, bytes, protection, flags, -1, 0));
}

// Until the thread waits in the kernel in this system call.
inline void until_blocked(const std::atomic<int>& thread, long number) {
    for (;;) {
        std::array<char, 64> path{};
        std::array<char, 64> text{};
        std::snprintf(path.data(), path.size(), "/proc/self/task/%d/syscall", thread.load());
        const int file = open(path.data(), O_RDONLY);
        const bool any = file >= 0 && syscall(SYS_read, file, text.data(), text.size() - 1) > 0;
        close(file);
        if (any && std::strtol(text.data(), nullptr, 10) == number && text[0] != 'r') {
            return;
        }
        sched_yield();
    }
}

struct Pair {
    explicit Pair(int type) { socketpair(AF_UNIX, type, 0, ends.data()); }
    void wake() const { static_cast<void>(!write(ends[1], "data", 4)); }
    std::array<int, 2> ends{};
};

// A copy of the page has ended, and nobody has waited for it: the page is still protected.
inline char* stale_page(Cuda& cuda) {
    cuda.use();
    char* page = cuda.pinned(kPage);
    cuda.close();
    cuda.send(page, 256);
    cuda.send(page, 256);
    cuda.open();
    char* other = cuda.pinned(kPage);
    cuda.fetch(other, 8);
    void* event = nullptr;
    call("cuEventCreate", &event, 0U);
    call("cuEventRecord", event, cuda.stream);
    auto query = reinterpret_cast<int (*)(void*)>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuEventQuery"));
    while (query(event) != 0) {
        sched_yield();
    }
    return page;
}

// A copy into the middle of a page of pinned memory is in flight: what the program touches lies beside it.
struct Pinned {
    Pinned() : page(cuda.pinned(kPage)) {
        cuda.close();
        cuda.fetch(page + 2048, 512);
    }
    ~Pinned() { cuda.finish(); }
    Cuda cuda;
    char* page = nullptr;
};

}  // namespace harm
