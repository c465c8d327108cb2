// Programs that are right, aimed at where page protection could harm them: `programs NAME` says what it saw, and says
// the same with and without hostrace. `programs` lists them.
#include <aio.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <climits>
#include <csetjmp>
#include <csignal>
#include <ctime>

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "programs.h"

namespace harm {
namespace {

#ifdef HARM_NOTE_OF_GO
__asm__(".pushsection .note.go.buildid, \"a\"; .long 4, 4, 4, 0x6f47, 0; .popsection");
#endif

// A thread waits in a call that writes the beginning of a page, and a copy begins behind it in the same page.
int blocked(long number, const std::function<long(char*)>& wait, const std::function<void()>& wake) {
    Cuda cuda;
    char* page = cuda.pinned(kPage);
    std::atomic<int> thread{0};
    long result = 0;
    int error = 0;
    std::thread waits([&] {
        thread = static_cast<int>(syscall(SYS_gettid));
        result = wait(page);
        error = errno;
    });
    while (thread == 0) {
        sched_yield();
    }
    until_blocked(thread, number);
    cuda.close();
    cuda.fetch(page + 512, 256);
    wake();
    waits.join();
    errno = error;
    say("waited", result);
    std::printf("%.4s\n", page);
    cuda.finish();
    return 0;
}

PROGRAM(blocked_recv) {
    const Pair pair(SOCK_STREAM);
    return blocked(SYS_recvfrom, [&](char* to) { return recv(pair.ends[0], to, 64, 0); }, [&] { pair.wake(); });
}
PROGRAM(blocked_recv_of_a_datagram) {
    const Pair pair(SOCK_DGRAM);
    return blocked(
        SYS_recvfrom, [&](char* to) { return recvfrom(pair.ends[0], to, 64, 0, nullptr, nullptr); },
        [&] { pair.wake(); });
}
PROGRAM(blocked_recvmsg) {
    const Pair pair(SOCK_DGRAM);
    return blocked(
        SYS_recvmsg,
        [&](char* to) {
            iovec part{to, 64};
            msghdr message{};
            message.msg_iov = &part;
            message.msg_iovlen = 1;
            return recvmsg(pair.ends[0], &message, 0);
        },
        [&] { pair.wake(); });
}
PROGRAM(blocked_read) {
    const Pair pair(SOCK_STREAM);
    return blocked(SYS_read, [&](char* to) { return read(pair.ends[0], to, 64); }, [&] { pair.wake(); });
}
PROGRAM(blocked_readv) {
    const Pair pair(SOCK_STREAM);
    return blocked(
        SYS_readv,
        [&](char* to) {
            std::array<iovec, 2> parts{iovec{to, 2}, iovec{to + 2, 2}};
            return readv(pair.ends[0], parts.data(), 2);
        },
        [&] { pair.wake(); });
}
PROGRAM(blocked_fread) {
    const Pair pair(SOCK_STREAM);
    FILE* file = fdopen(pair.ends[0], "r");
    setvbuf(file, nullptr, _IONBF, 0);
    return blocked(SYS_read, [&](char* to) { return static_cast<long>(fread(to, 1, 4, file)); }, [&] { pair.wake(); });
}
PROGRAM(blocked_poll) {
    const Pair pair(SOCK_STREAM);
    return blocked(
        kPollCall,
        [&](char* page) {
            auto* file = reinterpret_cast<pollfd*>(page + 64);
            *file = {pair.ends[0], POLLIN, 0};
            const int result = poll(file, 1, -1);
            return result * 100L + file->revents;
        },
        [&] { pair.wake(); });
}
PROGRAM(blocked_epoll_wait) {
    const Pair pair(SOCK_STREAM);
    const int set = epoll_create1(0);
    epoll_event wanted{};
    wanted.events = EPOLLIN | EPOLLONESHOT;
    epoll_ctl(set, EPOLL_CTL_ADD, pair.ends[0], &wanted);
    return blocked(
        kEpollCall, [&](char* page) { return epoll_wait(set, reinterpret_cast<epoll_event*>(page + 64), 1, -1); },
        [&] { pair.wake(); });
}
PROGRAM(blocked_write) {
    const Pair pair(SOCK_STREAM);
    std::vector<char> got(1 << 22);
    return blocked(
        SYS_write,
        [&](char* page) {
            long sent = 0;
            std::memcpy(page, "full", 4);
            while (sent < 1 << 22) {
                const long part = write(pair.ends[1], page, 256);
                if (part < 0) {
                    return part;
                }
                sent += part;
            }
            return sent;
        },
        [&] {
            long all = 0;
            while (all < 1 << 22) {
                all += read(pair.ends[0], got.data(), got.size());
            }
            say("drained", all);
        });
}

// Threads copy, each in a buffer of its own, while the process ends.
PROGRAM(exit_while_threads_copy) {
    static Cuda cuda;
    static std::atomic<int> copies{0};
    for (int number = 0; number < 8; ++number) {
        std::thread([] {
            cuda.use();
            char* buffer = cuda.pinned(kPage);
            void* stream = nullptr;
            call("cuStreamCreate", &stream, 1U);
            // The driver refuses calls once it has begun to end.
            while (tried("cuMemcpyHtoDAsync_v2", cuda.memory, buffer, kPage, stream) == 0 &&
                   tried("cuStreamSynchronize", stream) == 0) {
                *buffer = 1;
                ++copies;
            }
            pause();
        }).detach();
    }
    while (copies < 100) {
        sched_yield();
    }
    std::printf("done\n");
    std::exit(0);
}

PROGRAM(thread_that_blocked_all_signals_before_cuda) {
    std::atomic<char*> page{nullptr};
    std::atomic<bool> masked{false};
    std::thread worker([&] {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, nullptr);
        masked = true;
        while (page == nullptr) {
            sched_yield();
        }
        *page.load() = 7;
        std::printf("wrote %d\n", *page.load());
    });
    while (!masked) {
        sched_yield();
    }
    Cuda cuda;
    page = stale_page(cuda);
    worker.join();
    return 0;
}
PROGRAM(server_with_a_thread_for_signals) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    std::thread waits([&] {
        int got = 0;
        sigset_t wanted;
        sigemptyset(&wanted);
        sigaddset(&wanted, SIGTERM);
        sigwait(&wanted, &got);
        std::printf("got %d\n", got);
    });
    Cuda cuda;
    stale_page(cuda)[1] = 7;
    std::thread worker([&] { stale_page(cuda)[1] = 7; });
    worker.join();
    kill(getpid(), SIGTERM);
    waits.join();
    return 0;
}
PROGRAM(started_with_signals_blocked) {
    if (std::getenv("HARM_AGAIN") == nullptr) {
        sigset_t all;
        sigfillset(&all);
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, nullptr, 8);
        setenv("HARM_AGAIN", "1", 1);
        execl("/proc/self/exe", "programs", "started_with_signals_blocked", nullptr);
    }
    Cuda cuda;
    stale_page(cuda)[1] = 7;
    std::printf("wrote\n");
    return 0;
}
PROGRAM(thread_whose_attributes_block_signals) {
    pthread_attr_t attributes;
    sigset_t all;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setsigmask_np(&attributes, &all);
    static Cuda cuda;
    pthread_t thread{};
    pthread_create(
        &thread, &attributes,
        [](void*) -> void* {
            stale_page(cuda)[1] = 7;
            std::printf("wrote\n");
            return nullptr;
        },
        nullptr);
    return pthread_join(thread, nullptr);
}
PROGRAM(mask_that_is_asked_for) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    pthread_sigmask(SIG_SETMASK, nullptr, &before);
    std::printf("%d %d %d\n", sigismember(&before, SIGSEGV), sigismember(&before, SIGTRAP),
                sigismember(&before, SIGINT));
    std::thread([&] {
        sigset_t inherited;
        sigprocmask(SIG_SETMASK, nullptr, &inherited);
        std::printf("%d\n", sigismember(&inherited, SIGSEGV));
    }).join();
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGSEGV);
    pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
    sigprocmask(SIG_BLOCK, nullptr, &before);
    std::printf("%d %d\n", sigismember(&before, SIGSEGV), sigismember(&before, SIGTRAP));
    return 0;
}
PROGRAM(sigsuspend_with_everything_else_blocked) {
    static char* page = nullptr;
    Cuda cuda;
    page = stale_page(cuda);
    struct sigaction action{};
    action.sa_handler = [](int) { page[3] = 7; };
    sigaction(SIGUSR1, &action, nullptr);
    sigset_t most;
    sigfillset(&most);
    pthread_sigmask(SIG_SETMASK, &most, nullptr);
    pthread_kill(pthread_self(), SIGUSR1);  // to the process, a thread of the driver might take it
    sigdelset(&most, SIGUSR1);
    sigsuspend(&most);
    std::printf("wrote %d\n", page[3]);
    return 0;
}

// Memory of the heap's kind: one page, in which only the second half is registered, and a copy into it is in flight.
struct Shared {
    Shared() {
        page = mapped(4 * kPage);
        cuda.pin(page + 2048, 512);
        cuda.close();
        cuda.fetch(page + 2048, 512);
    }
    ~Shared() { cuda.finish(); }
    template <typename T>
    T* make() {
        return new (page) T();
    }
    Cuda cuda;
    char* page = nullptr;
};

PROGRAM(mutex_beside_registered_memory) {
    Shared shared;
    auto* mutex = shared.make<std::mutex>();
    mutex->lock();
    std::atomic<int> thread{0};
    std::thread waits([&] {
        thread = static_cast<int>(syscall(SYS_gettid));
        mutex->lock();
        std::printf("locked\n");
        mutex->unlock();
    });
    while (thread == 0) {
        sched_yield();
    }
    until_blocked(thread, SYS_futex);
    mutex->unlock();
    waits.join();
    return 0;
}
PROGRAM(condition_beside_registered_memory) {
    struct Both {
        std::mutex mutex;
        std::condition_variable changed;
        bool done = false;
    };
    Shared shared;
    auto* both = shared.make<Both>();
    std::atomic<int> thread{0};
    std::thread waits([&] {
        thread = static_cast<int>(syscall(SYS_gettid));
        std::unique_lock held(both->mutex);
        both->changed.wait(held, [&] { return both->done; });
        std::printf("told\n");
    });
    while (thread == 0) {
        sched_yield();
    }
    until_blocked(thread, SYS_futex);
    {
        const std::lock_guard held(both->mutex);
        both->done = true;
        both->changed.notify_one();
    }
    waits.join();
    return 0;
}
PROGRAM(register_beside_registered_memory) {
    Shared shared;
    // As the driver does: it reads the page's tables and refuses what is protected.
    std::array<unsigned char, 1> resident{};
    say("mincore", mincore(shared.page, kPage, resident.data()));
    say("madvise", madvise(shared.page, kPage, MADV_POPULATE_WRITE));
    return 0;
}

// Calls of the C library by which the kernel reads or writes around `at`.
void calls_with_sockets(char* at) {
    Pair pair(SOCK_DGRAM);
    static_cast<void>(syscall(SYS_write, pair.ends[1], "data", 4));
    *reinterpret_cast<pollfd*>(at) = {pair.ends[0], POLLIN, 0};
    say("poll", poll(reinterpret_cast<pollfd*>(at), 1, 1000));
    say("ppoll", ppoll(reinterpret_cast<pollfd*>(at), 1, nullptr, nullptr));
    auto* const files = reinterpret_cast<fd_set*>(at);
    FD_ZERO(files);
    FD_SET(pair.ends[0], files);
    say("select", select(pair.ends[0] + 1, files, nullptr, nullptr, nullptr));
    say("ioctl", ioctl(pair.ends[0], FIONREAD, at));
    auto* const message = reinterpret_cast<mmsghdr*>(at);
    auto* const part = reinterpret_cast<iovec*>(at + 256);
    *part = {at + 512, 64};
    *message = {};
    message->msg_hdr.msg_iov = part;
    message->msg_hdr.msg_iovlen = 1;
    say("recvmmsg", recvmmsg(pair.ends[0], message, 1, MSG_DONTWAIT, nullptr));
    part->iov_len = 4;
    say("sendmmsg", sendmmsg(pair.ends[1], message, 1, 0));
    say("recvmsg", recvmsg(pair.ends[0], &message->msg_hdr, 0));
    auto* const length = reinterpret_cast<socklen_t*>(at);
    *length = sizeof(int);
    say("getsockopt", getsockopt(pair.ends[0], SOL_SOCKET, SO_TYPE, at + 16, length));
    *reinterpret_cast<int*>(at) = 1 << 16;
    say("setsockopt", setsockopt(pair.ends[0], SOL_SOCKET, SO_RCVBUF, at, sizeof(int)));
    *length = 64;
    say("getsockname", getsockname(pair.ends[0], reinterpret_cast<sockaddr*>(at + 16), length));
}

void calls_with_files(char* at) {
    say("stat", stat("/", reinterpret_cast<struct stat*>(at)));
    say("lstat", lstat("/", reinterpret_cast<struct stat*>(at)));
    say("fstat", fstat(0, reinterpret_cast<struct stat*>(at)));
    say("fstatat", fstatat(AT_FDCWD, "/", reinterpret_cast<struct stat*>(at), 0));
    say("pipe", pipe(reinterpret_cast<int*>(at)));
    say("pipe2", pipe2(reinterpret_cast<int*>(at), O_CLOEXEC));
    say("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, reinterpret_cast<int*>(at)));
    say("getcwd", getcwd(at, 256) == nullptr ? -1 : 0);
    say("readlink", readlink("/proc/self/exe", at, 256) > 0 ? 0 : -1);
    say("uname", uname(reinterpret_cast<utsname*>(at)));
    say("getrusage", getrusage(RUSAGE_SELF, reinterpret_cast<rusage*>(at)));
    say("getrlimit", getrlimit(RLIMIT_CORE, reinterpret_cast<rlimit*>(at)));
    FILE* const file = fopen("/proc/self/exe", "r");
    setvbuf(file, nullptr, _IONBF, 0);
    say("fread_unlocked", static_cast<long>(fread_unlocked(at, 1, 64, file)));
    say("sigpending", sigpending(reinterpret_cast<sigset_t*>(at)));
    std::array<int, 2> ends{};
    static_cast<void>(!pipe(ends.data()));
    auto* const part = reinterpret_cast<iovec*>(at + 256);
    *part = {at, 16};
    say("vmsplice", vmsplice(ends[1], part, 1, 0));
    iovec remote{at, 16};
    *part = {at + 64, 16};
    say("process_vm_readv", process_vm_readv(getpid(), part, 1, &remote, 1, 0));
    auto* const times = reinterpret_cast<timespec*>(at);
    *times = {0, 1000};
    say("nanosleep", nanosleep(times, times + 1));
    say("clock_nanosleep", clock_nanosleep(CLOCK_MONOTONIC, 0, times, nullptr));
    say("clock_gettime", clock_gettime(CLOCK_THREAD_CPUTIME_ID, times));
    std::strcpy(at, "/");
    say("open", open(at, O_RDONLY) >= 0 ? 0 : -1);
    say("openat", openat(AT_FDCWD, at, O_RDONLY) >= 0 ? 0 : -1);
    say("access", access(at, R_OK));
    say("getrandom", getrandom(at, 16, 0));
    say("getentropy", getentropy(at, 16));
    say("syscall", syscall(SYS_getrandom, at, 16, 0));
}

void calls_into(char* page) {
    calls_with_sockets(page + 128);
    calls_with_files(page + 128);
}

PROGRAM(calls_beside_registered_memory) {
    Shared shared;
    calls_into(shared.page);
    char* const at = shared.page + 128;
    auto* const request = reinterpret_cast<aiocb*>(at);
    *request = {};
    request->aio_fildes = open("/proc/self/exe", O_RDONLY);
    request->aio_buf = at + 512;
    request->aio_nbytes = 64;
    say("aio_read", aio_read(request));
    while (aio_error(request) == EINPROGRESS) {
        sched_yield();
    }
    say("aio_return", aio_return(request));
    return 0;
}
PROGRAM(calls_beside_pinned_memory) {
    Pinned pinned;
    calls_into(pinned.page);
    return 0;
}

// Every other 128 bytes of 40 are in flight.
PROGRAM(readv_of_many_parts) {
    constexpr std::size_t kParts = 40;
    Cuda cuda;
    char* memory = cuda.pinned(kParts * kPage);
    cuda.close();
    std::array<iovec, kParts> parts{};
    for (std::size_t at = 0; at < kParts; ++at) {
        cuda.fetch(memory + at * kPage + 1024, 128);
        parts[at] = {memory + at * kPage, 256};
    }
    const int zero = open("/dev/zero", O_RDONLY);
    say("readv", readv(zero, parts.data(), kParts));
    cuda.finish();
    return 0;
}
PROGRAM(many_threads_that_wait) {
    constexpr std::size_t kThreads = 200;
    Cuda cuda;
    char* memory = cuda.pinned(kThreads * kPage);
    std::vector<std::thread> threads;
    std::vector<Pair> pairs(kThreads, Pair(SOCK_STREAM));
    std::atomic<long> got{0};
    for (std::size_t at = 0; at < kThreads; ++at) {
        pairs[at] = Pair(SOCK_STREAM);
        threads.emplace_back([&, at] { got += recv(pairs[at].ends[0], memory + at * kPage, 64, 0); });
    }
    cuda.close();
    for (std::size_t at = 0; at < kThreads; ++at) {
        cuda.fetch(memory + at * kPage + 1024, 128);
    }
    for (const Pair& pair : pairs) {
        static_cast<void>(!write(pair.ends[1], "data", 4));
    }
    for (std::thread& each : threads) {
        each.join();
    }
    say("got", got);
    cuda.finish();
    return 0;
}

// What the device does not touch is the program's own, whoever starts or replaces what.
PROGRAM(children_of_every_kind) {
    Pinned pinned;
    const auto child = [&](const char* how, pid_t id) {
        if (id == 0) {
            pinned.page[0] = 7;
            pinned.page[2048] = 7;
            _exit(pinned.page[0]);
        }
        int status = 0;
        waitpid(id, &status, 0);
        say(how, WEXITSTATUS(status));
    };
    std::fflush(stdout);
    child("fork", fork());
    say("system", system("exit 3"));
    char name[] = "true";
    char* arguments[] = {name, nullptr};
    pid_t id = 0;
    say("posix_spawnp", posix_spawnp(&id, "true", nullptr, nullptr, arguments, environ));
    child("spawned", id);
    FILE* out = popen("echo from a child", "r");
    std::array<char, 64> line{};
    say("popen", std::fgets(line.data(), 64, out) != nullptr ? 0 : -1);
    std::printf("%s", line.data());
    return pclose(out);
}
// Handlers of forks do not run in these. A child has pages of its own: what is in use for its parent is not for it.
extern "C" pid_t _Fork() noexcept __attribute__((weak));
PROGRAM(children_that_no_handler_of_forks_sees) {
    Pinned pinned;
    const auto child = [&](const char* how, pid_t id) {
        if (id == 0) {
            pinned.page[2048] = 7;
            _exit(pinned.page[2048]);
        }
        int status = 0;
        waitpid(id, &status, 0);
        say(how, WEXITSTATUS(status));
    };
    std::fflush(stdout);
    child("clone", static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)));
    child("clone", static_cast<pid_t>(raw(SYS_clone, SIGCHLD)));
    if (_Fork != nullptr) {
        child("_Fork", _Fork());
    }
    return 0;
}

// dlerror tells of the program's own calls alone.
PROGRAM(error_that_is_asked_for_late) {
    const Pinned pinned;
    dlopen("libnowhere.so", RTLD_NOW);
    say("access", access("/", R_OK));
    say("eaccess", eaccess("/", R_OK));
    say("getgroups", getgroups(0, nullptr) < 0);
    const char* why = dlerror();
    std::printf("%s\n", why == nullptr ? "no error" : why);
    return 0;
}

PROGRAM(fault_that_the_program_mends) {
    static sigjmp_buf back;
    Pinned pinned;
    struct sigaction action{};
    action.sa_handler = [](int) { siglongjmp(back, 1); };
    sigaction(SIGSEGV, &action, nullptr);
    for (static int round = 0; round < 3; ++round) {
        if (sigsetjmp(back, 1) == 0) {
            *reinterpret_cast<volatile int*>(8) = 1;
        } else {
            std::printf("mended\n");
        }
        pinned.page[0] = 1;
    }
    return 0;
}
PROGRAM(fault_in_memory_that_the_program_protects) {
    static char* own;
    Pinned pinned;
    own = mapped(kPage, PROT_NONE);
    struct sigaction action{};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
        mprotect(own, kPage, PROT_READ | PROT_WRITE);
        *own = info->si_addr == own + 9 ? 'y' : 'n';
    };
    sigaction(SIGSEGV, &action, nullptr);
    own[9] = 1;
    std::printf("%c\n", *own);
    return 0;
}
PROGRAM(crash) {
    Pinned pinned;
    std::printf("crashes\n");
    std::fflush(stdout);
    *reinterpret_cast<volatile int*>(8) = 1;
    return 0;
}
PROGRAM(trap_of_the_program) {
    Pinned pinned;
    static int traps = 0;
    struct sigaction action{};
    action.sa_handler = [](int) { ++traps; };
    sigaction(SIGTRAP, &action, nullptr);
    pinned.page[0] = 1;
    raise(SIGTRAP);
    trap();
    std::printf("%d\n", traps);
    return 0;
}
PROGRAM(interrupts_that_touch_neighbours) {
    static char* page;
    static std::atomic<int> ticks{0};
    Pinned pinned;
    page = pinned.page;
    struct sigaction action{};
    action.sa_handler = [](int) { page[16] = static_cast<char>(++ticks); };
    sigaction(SIGALRM, &action, nullptr);
    const itimerval often{{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, nullptr);
    Cuda& cuda = pinned.cuda;
    char* other = cuda.pinned(kPage);
    // A driver takes about a thousand calls for a held stream, and then waits.
    for (int sent = 0; ticks < 200;) {
        page[32] = page[33];
        if (sent < 200) {
            cuda.send(other, 8);
            ++sent;
        }
    }
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    std::printf("ticked\n");
    return 0;
}
// Often enough to come while hostrace is at its books for a call of the program itself.
PROGRAM(interrupts_that_call_into_pinned_memory) {
    static char* page;
    static int zeros;
    static std::atomic<int> ticks{0};
    static std::atomic<int> refused{0};
    Pinned pinned;
    page = pinned.page;
    zeros = open("/dev/zero", O_RDONLY);
    struct sigaction action{};
    action.sa_handler = [](int) {
        iovec parts[2] = {{page + 16, 4}, {page + 24, 4}};
        const bool is_well = read(zeros, page + 16, 4) == 4 && readv(zeros, parts, 2) == 8 &&
                             syscall(SYS_read, zeros, page + 16, 4) == 4 &&
                             clock_gettime(CLOCK_MONOTONIC, reinterpret_cast<timespec*>(page + 64)) == 0;
        refused += is_well ? 0 : 1;
        ++ticks;
    };
    sigaction(SIGALRM, &action, nullptr);
    const itimerval often{{0, 50}, {0, 50}};
    setitimer(ITIMER_REAL, &often, nullptr);
    while (ticks < 4000) {
        refused += read(zeros, page + 32, 4) == 4 ? 0 : 1;
    }
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    std::printf("refused: %d\n", refused.load());
    return 0;
}
// Where there are some; of the usual ones elsewhere.
PROGRAM(registered_large_pages) {
    constexpr std::size_t bytes = std::size_t{4} << 20;
    const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
    void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, anonymous | MAP_HUGETLB, -1, 0);
    made = made != MAP_FAILED ? made : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, anonymous, -1, 0);
    auto* memory = static_cast<char*>(made);
    Cuda cuda;
    cuda.pin(memory, bytes);
    const Pair pair(SOCK_STREAM);
    for (std::size_t at = 0; at < bytes; at += bytes / 8) {
        cuda.close();
        cuda.fetch(memory + at, kPage);
        memory[(at + bytes / 4) % bytes] = 1;
        pair.wake();
        say("read", read(pair.ends[0], memory + (at + 2 * kPage) % bytes, 4));
        cuda.finish();
    }
    return 0;
}
PROGRAM(threads_share_pages_and_keep_their_bytes) {
    Cuda cuda;
    char* memory = cuda.pinned(kPage);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; ++number) {
        threads.emplace_back([&, number] {
            cuda.use();
            void* stream = nullptr;
            call("cuStreamCreate", &stream, 1U);
            char* own = memory + number * 512;
            for (int round = 0; round < 300; ++round) {
                std::memset(own, round & 127, 512);
                call("cuMemcpyHtoDAsync_v2", cuda.memory + static_cast<unsigned>(number) * 512U, own, std::size_t{512},
                     stream);
                call("cuMemcpyDtoHAsync_v2", own, cuda.memory + static_cast<unsigned>(number) * 512U, std::size_t{512},
                     stream);
                call("cuStreamSynchronize", stream);
                for (int at = 0; at < 512; ++at) {
                    wrong += own[at] != (round & 127);
                }
            }
        });
    }
    for (std::thread& each : threads) {
        each.join();
    }
    say("wrong", wrong);
    return 0;
}
PROGRAM(files_from_pinned_memory) {
    Pinned pinned;
    std::memset(pinned.page, 'a', 1024);
    FILE* file = fopen("by_fwrite", "w");
    say("fwrite", static_cast<long>(fwrite(pinned.page, 1, 1024, file)));
    say("fputs", (pinned.page[8] = 0, fputs(pinned.page, file)));
    fclose(file);
    const int plain = open("by_write", O_CREAT | O_RDWR, 0600);
    say("write", write(plain, pinned.page, 1024));
    say("pwrite", pwrite(plain, pinned.page + 1, 1023, 1024));
    say("pread", pread(plain, pinned.page, 100, 5));
    std::memset(pinned.page, 'b', 64);
    say("rename", (std::strcpy(pinned.page, "by_write"), std::rename(pinned.page, "renamed")));
    return 0;
}
// What a program in a sandbox would not miss.
void forbid(const std::vector<int>& calls) {
    std::vector<sock_filter> filter{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
    for (const int number : calls) {
        filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1));
        filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    }
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    say("seccomp", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}
PROGRAM(sandbox_that_kills_for_rare_calls) {
    Cuda cuda;
    std::vector<char> memory(4 * kPage);
    cuda.pin(memory.data() + 100, 3 * kPage);
    std::vector<int> rare{SYS_process_vm_readv,
                          SYS_process_vm_writev,
                          SYS_ptrace,
                          SYS_mincore,
                          SYS_userfaultfd,
                          SYS_memfd_create,
                          SYS_io_uring_setup,
                          SYS_execve,
                          SYS_kill,
                          SYS_perf_event_open,
                          SYS_bpf};
    rare.insert(rare.end(), kForks.begin(), kForks.end());
    forbid(rare);
    for (int round = 0; round < 20; ++round) {
        std::memset(memory.data() + 100, round, 3 * kPage);
        cuda.send(memory.data() + 100, 3 * kPage);
        memory[0] = memory[4 * kPage - 1] = 7;
        cuda.wait();
        cuda.fetch(memory.data() + 100, 3 * kPage);
        cuda.wait();
        say("round", memory[100 + kPage]);
    }
    return 0;
}

// Sources that nobody pinned, which the program may do with as it likes when the call has returned.
constexpr std::size_t kSource = std::size_t{256} << 10;
PROGRAM(source_whose_place_becomes_code) {
    Cuda cuda;
    char* memory = mapped(kSource);
    cuda.close();
    cuda.promise(memory, kSource);
    munmap(memory, kSource);
    mapped(kSource, PROT_READ | PROT_WRITE, kOfItsOwn | MAP_FIXED, memory);
    std::memcpy(memory + kPage, kReturnsSeven.data(), kReturnsSeven.size());
    __builtin___clear_cache(memory + kPage, memory + 2 * kPage);
    mprotect(memory, kSource, PROT_READ | PROT_EXEC);
    const auto function = reinterpret_cast<int (*)()>(memory + kPage);
    say("code", function());
    cuda.finish();
    say("code", function());
    memory[0] = 1;  // and it is still no memory to write to
    return 0;
}
[[gnu::noinline]] void from_the_stack(Cuda& cuda) {
    std::array<char, kSource> memory;
    memory.fill(3);
    cuda.promise(memory.data(), memory.size());
}
[[gnu::noinline]] long deep(long calls) {
    std::array<char, kPage> frame;
    frame.fill(static_cast<char>(calls));
    asm volatile("" : : "r"(frame.data()) : "memory");
    return calls == 0 ? 0 : deep(calls - 1) + frame[0];
}
PROGRAM(source_on_a_stack_that_goes_on) {
    static Cuda cuda;
    std::thread([] {
        cuda.use();
        cuda.close();
        from_the_stack(cuda);
        say("deep", deep(100));
        cuda.finish();
        say("deep", deep(100));
    }).join();
    return 0;
}
PROGRAM(source_that_is_never_written) {
    Cuda cuda;
    char* memory = mapped(kSource, PROT_READ);
    cuda.promise(memory, kSource);
    cuda.wait();
    say("read", memory[9]);
    memory[9] = 1;  // ends the program
    return 0;
}
PROGRAM(source_into_which_a_raw_call_reads) {
    Cuda cuda;
    char* memory = mapped(kSource);
    const Pair pair(SOCK_STREAM);
    cuda.close();
    cuda.promise(memory, kSource);
    pair.wake();
    say("read", raw_read(pair.ends[0], memory + kPage, 4));
    cuda.finish();
    say("data", memory[kPage + 1]);
    return 0;
}
PROGRAM(raw_call_into_pinned_memory) {
    const Pinned pinned;
    const Pair pair(SOCK_STREAM);
    pair.wake();
    say("read", raw_read(pair.ends[0], pinned.page, 4));
    return 0;
}
PROGRAM(fault_behind_a_mask_that_a_raw_call_opened) {
    const Pinned pinned;
    struct sigaction action{};
    action.sa_handler = [](int) {
        constexpr char kSaid[] = "handled\n";
        _exit(write(1, kSaid, sizeof kSaid - 1) > 0 ? 0 : 1);
    };
    sigaction(SIGSEGV, &action, nullptr);
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    raw(SYS_rt_sigprocmask, SIG_UNBLOCK, address(&all), 0, 8);
    static volatile char* nowhere = nullptr;
    *nowhere = 1;
    return 0;
}
PROGRAM(raw_calls_of_every_kind) {
    Pinned pinned;
    char* const page = pinned.page;
    const Pair pair(SOCK_STREAM);
    std::array<iovec, 2> parts{iovec{page, 2}, iovec{page + 2, 2}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = 2;
    say_raw("write", SYS_write, pair.ends[0], address(page), 4);
    say_raw("writev", SYS_writev, pair.ends[0], address(parts.data()), 2);
    say_raw("sendmsg", SYS_sendmsg, pair.ends[0], address(&message));
    say_raw("readv", SYS_readv, pair.ends[1], address(parts.data()), 2);
    say_raw("recvmsg", SYS_recvmsg, pair.ends[1], address(&message));
    say_raw("recvfrom", SYS_recvfrom, pair.ends[1], address(page + 64), 4);
    say_raw("uname", SYS_uname, address(page + 128));
    say_raw("bad file", SYS_read, -1, address(page), 4);
    pair.wake();
    say_raw("bad address", SYS_read, pair.ends[0], 8, 4);
    return 0;
}
// A thread waits in the kernel, and the handler of a signal that comes meanwhile makes calls of its own.
PROGRAM(raw_call_that_is_interrupted) {
    static std::array<int, 2> ends{};
    static std::atomic<long> in_handler{0};
    Pinned pinned;
    const Pair pair(SOCK_STREAM);
    ends = pair.ends;
    for (const int flags : {0, SA_RESTART}) {
        struct sigaction action{};
        action.sa_handler = [](int) { in_handler = raw(SYS_getppid) == getppid() ? 1 : -1; };
        action.sa_flags = flags;
        sigaction(SIGUSR1, &action, nullptr);
        std::atomic<int> thread{0};
        long result = 0;
        in_handler = 0;
        std::thread waits([&] {
            thread = static_cast<int>(syscall(SYS_gettid));
            result = raw_read(pair.ends[0], pinned.page, 4);
        });
        while (thread == 0) {
            sched_yield();
        }
        until_blocked(thread, SYS_read);
        pthread_kill(waits.native_handle(), SIGUSR1);
        while (in_handler == 0) {
            sched_yield();
        }
        if (flags == SA_RESTART) {
            pair.wake();
        }
        waits.join();
        std::printf("%d: read %ld handler %ld\n", flags == SA_RESTART, result, in_handler.load());
    }
    return 0;
}
// A mask, a handler and a stack for signals, set and asked for past the C library.
PROGRAM(raw_calls_about_signals) {
    struct Action {
        void (*handler)(int);
        unsigned long flags;
        void* restorer;
        unsigned long mask;
    };
    Pinned pinned;
    const Pair pair(SOCK_STREAM);
    unsigned long all = ~0UL;
    unsigned long mask = 0;
    say_raw("block", SYS_rt_sigprocmask, SIG_SETMASK, address(&all), address(&mask), sizeof all);
    std::printf("before %lx\n", mask);
    pair.wake();
    say_raw("read", SYS_read, pair.ends[0], address(pinned.page), 4);
    pinned.page[0] = 'x';
    all = 1UL << (SIGSYS - 1);
    say_raw("unblock", SYS_rt_sigprocmask, SIG_UNBLOCK, address(&all), address(&mask), sizeof all);
    std::printf("blocked %lx\n", mask);
    say_raw("asked", SYS_rt_sigprocmask, SIG_BLOCK, 0, address(&mask), sizeof mask);
    std::printf("left %lx\n", mask);
    say_raw("bad mask", SYS_rt_sigprocmask, 77, address(&all), 0, sizeof all);
    const Action ignored{SIG_IGN, 0, nullptr, ~0UL};
    Action before{};
    for (const int signal : {SIGSYS, SIGSEGV, SIGUSR2}) {
        say_raw("ignore", SYS_rt_sigaction, signal, address(&ignored), 0, sizeof mask);
        say_raw("asked", SYS_rt_sigaction, signal, 0, address(&before), sizeof mask);
        std::printf("ignored %d\n", before.handler == SIG_IGN);
    }
    static std::array<char, 1 << 16> memory{};
    const stack_t stack{memory.data(), 0, memory.size()};
    stack_t told{};
    say_raw("stack", SYS_sigaltstack, address(&stack));
    say("asked", sigaltstack(nullptr, &told));
    std::printf("stack %d\n", told.ss_sp == memory.data());
    return 0;
}
// Children that the program makes without the C library; afterwards it goes on as before.
PROGRAM(raw_calls_that_make_children) {
    Pinned pinned;
    const Pair pair(SOCK_STREAM);
    for (const long how : {static_cast<long>(SIGCHLD), static_cast<long>(SIGCHLD | CLONE_VM | CLONE_VFORK)}) {
        const long child = raw(SYS_clone, how);
        if (child == 0) {
            raw(SYS_exit_group, 7);
        }
        int status = 0;
        static_cast<void>(waitpid(static_cast<int>(child), &status, 0));
        say("child", WEXITSTATUS(status));
    }
    pair.wake();
    say("read", raw_read(pair.ends[0], pinned.page, 4));
    return 0;
}
// The kernel does what is asked for when it likes. `ask` says what, once `prepare` has told the ring what it needs.
using Ask = std::function<void(io_uring_sqe&, char* page)>;
int by_ring(const Ask& ask, const std::function<void(int ring, char* page)>& prepare = nullptr) {
    Cuda cuda;
    char* const page = cuda.pinned(kPage);
    io_uring_params about{};
    const auto ring = static_cast<int>(raw(SYS_io_uring_setup, 2, address(&about)));
    if (ring < 0) {
        std::printf("no ring\n");
    }
    cuda.close();
    cuda.fetch(page + 512, 256);
    if (ring >= 0) {
        const auto map = [&](std::size_t bytes, long what) {
            return static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, what));
        };
        char* const sent = map(about.sq_off.array + about.sq_entries * 4, IORING_OFF_SQ_RING);
        char* const done = map(about.cq_off.cqes + about.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING);
        auto* const entry =
            reinterpret_cast<io_uring_sqe*>(map(about.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
        if (prepare != nullptr) {
            prepare(ring, page);
        }
        *entry = {};
        ask(*entry, page);
        reinterpret_cast<unsigned*>(sent + about.sq_off.array)[0] = 0;
        reinterpret_cast<std::atomic<unsigned>*>(sent + about.sq_off.tail)->store(1);
        say("enter", raw(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS));
        say("ring", reinterpret_cast<io_uring_cqe*>(done + about.cq_off.cqes)->res);
    }
    std::printf("%.3s\n", page + 1);
    cuda.finish();
    return 0;
}
void ask_to_read(io_uring_sqe& entry, char* into) {
    entry.opcode = IORING_OP_READ;
    entry.fd = open("/proc/self/exe", O_RDONLY);
    entry.addr = static_cast<unsigned long>(address(into));
    entry.len = 4;
}
PROGRAM(ring_into_pinned_memory) { return by_ring(ask_to_read); }
PROGRAM(ring_into_other_memory) {
    return by_ring([](io_uring_sqe& entry, char*) {
        static std::array<char, 4> other{};
        ask_to_read(entry, other.data());
    });
}
PROGRAM(ring_that_tells_into_pinned_memory) {
    return by_ring([](io_uring_sqe& entry, char* page) {
        entry.opcode = IORING_OP_STATX;
        entry.fd = AT_FDCWD;
        entry.addr = static_cast<unsigned long>(address("/"));
        entry.len = STATX_BASIC_STATS;
        entry.off = static_cast<unsigned long>(address(page + 1024));
    });
}
// It chooses among buffers that no request names.
PROGRAM(ring_with_buffers_in_pinned_memory) {
    static const Pair pair(SOCK_STREAM);
    pair.wake();
    return by_ring(
        [](io_uring_sqe& entry, char*) {
            entry.opcode = IORING_OP_RECV;
            entry.fd = pair.ends[0];
            entry.len = 4;
            entry.flags = 1U << IOSQE_BUFFER_SELECT_BIT;
        },
        [](int ring, char* page) {
            constexpr long kRingOfBuffers = 22;
            struct Buffer {  // of a ring, whose end lies in the first one
                unsigned long address;
                unsigned bytes;
                unsigned short id;
                std::atomic<unsigned short> end;
            };
            struct {
                const void* buffers;
                unsigned count = 4;
                unsigned short group = 0, flags = 0;
                std::array<unsigned long, 3> none{};
            } ring_of_buffers{mapped(kPage)};
            auto* const first = static_cast<Buffer*>(const_cast<void*>(ring_of_buffers.buffers));
            say_raw("buffers", SYS_io_uring_register, ring, kRingOfBuffers, address(&ring_of_buffers), 1);
            first->address = static_cast<unsigned long>(address(page));
            first->bytes = 64;
            first->end = 1;
        });
}
PROGRAM(submitted_into_pinned_memory) {
    Pinned pinned;
    aio_context_t context = 0;
    say("setup", syscall(SYS_io_setup, 4, &context));
    iocb request{};
    request.aio_fildes = static_cast<unsigned>(open("/proc/self/exe", O_RDONLY));
    request.aio_lio_opcode = IOCB_CMD_PREAD;
    request.aio_buf = static_cast<unsigned long>(address(pinned.page));
    request.aio_nbytes = 4;
    std::array<iocb*, 1> requests{&request};
    io_event event{};
    say("submit", syscall(SYS_io_submit, context, 1, requests.data()));
    say("events", syscall(SYS_io_getevents, context, 1, 1, &event, nullptr));
    say("result", event.res);
    return 0;
}
PROGRAM(aio_into_pinned_memory) {
    Pinned pinned;
    aiocb request{};
    request.aio_fildes = open("/proc/self/exe", O_RDONLY);
    request.aio_buf = pinned.page;
    request.aio_nbytes = 4;
    say("aio_read", aio_read(&request));
    while (aio_error(&request) == EINPROGRESS) {
        sched_yield();
    }
    say("aio_return", aio_return(&request));
    return 0;
}
// The sandbox asks the program itself for a call, by the signal that calls past the C library come by.
PROGRAM(sandbox_that_asks_the_program) {
    static std::atomic<int> asked{0};
    Pinned pinned;
    struct sigaction action{};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t* info, void*) { asked = info->si_syscall; };
    sigaction(SIGSYS, &action, nullptr);
    std::vector<sock_filter> filter{
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    say("seccomp", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    static_cast<void>(getpgid(0));
    say("asked", asked == SYS_getpgid);
    asked = 0;
    raw(SYS_getpgid, 0);
    say("asked", asked == SYS_getpgid);
    std::fflush(stdout);
    signal(SIGSYS, SIG_DFL);
    static_cast<void>(getpgid(0));  // ends the program
    return 0;
}
PROGRAM(raw_call_beside_registered_memory) {
    Cuda cuda;
    char* memory = mapped(kSource);
    const Pair pair(SOCK_STREAM);
    cuda.pin(memory + 100, 2 * kPage);
    cuda.close();
    cuda.fetch(memory + 100, 2 * kPage);
    pair.wake();
    say("read", raw_read(pair.ends[0], memory, 4));
    cuda.finish();
    return 0;
}
// Faults, calls of the C library that go well, and calls of the driver. What NVIDIA's own leaves in errno as it starts is
// another value where CUPTI has a subscriber, of whatever kind, so that is asked of the made-up driver.
PROGRAM(errno_is_left_alone) {
    errno = kErrno;
    Cuda cuda;
#ifdef HARM_CUDA_LEAVES_ERRNO
    std::printf("initialized: %s\n", std::strerror(errno));
#endif
    char* page = cuda.pinned(2 * kPage);
    const Pair pair(SOCK_STREAM);
    const auto left = [](const char* what, const auto& touch) {
        errno = kErrno;
        touch();
        std::printf("%s: %s\n", what, errno == kErrno ? "as it was" : std::strerror(errno));
    };
    for (int round = 0; round < 2; ++round) {
        cuda.close();
        left("enqueued", [&] { cuda.fetch(page + 2048, 512); });
        left("stepped", [&] { page[0] = 'a'; });
        left("written", [&] { static_cast<void>(!write(pair.ends[1], page, 8)); });
        left("read", [&] { static_cast<void>(!read(pair.ends[0], page, 8)); });
        left("waited for", [&] { static_cast<void>(poll(reinterpret_cast<pollfd*>(page), 0, 0)); });
        left("told", [&] { stat("/", reinterpret_cast<struct stat*>(page + 64)); });
        left("asked", [&] { static_cast<void>(syscall(SYS_getrandom, page, 16, 0)); });
        left("masked", [&] { pthread_sigmask(SIG_SETMASK, nullptr, reinterpret_cast<sigset_t*>(page + 1024)); });
        left("started", [&] { std::thread([&] { page[1] = 'b'; }).join(); });
        left("finished", [&] { cuda.finish(); });
        left("touched", [&] { page[2048] = 'c'; });
    }
    return 0;
}
PROGRAM(fails_with_what_the_kernel_says) {
    Pinned pinned;
    say("read", read(-1, pinned.page, 8));
    say("bad address", read(open("/dev/zero", O_RDONLY), reinterpret_cast<void*>(8), 8));
    say("stat", stat(reinterpret_cast<const char*>(8), reinterpret_cast<struct stat*>(pinned.page)));
    say("poll", poll(reinterpret_cast<pollfd*>(8), 1, 0));
    return 0;
}

#ifdef HARM_LOCKS_THAT_CALL
char* beside_what_is_registered = nullptr;

PROGRAM(raw_call_where_locks_call) {
    Shared shared;
    const Pair pair(SOCK_STREAM);
    beside_what_is_registered = shared.page;
    pair.wake();
    say("read", raw_read(pair.ends[0], shared.page, 4));
    return 0;
}
#endif

#ifdef HARM_CALLS_THAT_LOCK
// Code of the program makes its calls past the C library, in the middle of what its own functions of the C library wait
// for.
thread_local bool locked = false;
void wait_for_lock(const char* name) {
    if (locked) {
        std::printf("%s waits for ever\n", name);
        std::fflush(stdout);
        _exit(91);
    }
}

PROGRAM(raw_calls_where_calls_lock) {
    Pinned pinned;
    const Pair pair(SOCK_STREAM);
    pair.wake();
    io_uring_params asked{};
    const int ring = static_cast<int>(syscall(SYS_io_uring_setup, 4, &asked));
    locked = true;
    const long got = raw_read(pair.ends[0], pinned.page, 4);
    const long entered = raw(SYS_io_uring_enter, ring, 1);
    raw(SYS_set_robust_list, address(pinned.page), 24);  // whereupon nothing is protected, and the report says so
    locked = false;
    say("read", got);
    say("entered", entered);
    return 0;
}
#endif

}  // namespace
}  // namespace harm

#ifdef HARM_LOCKS_THAT_CALL
// A sanitizer's locks call the kernel, past the C library, wherever they are taken.
#define LOCK_THAT_CALLS(name, Lock)                                                         \
    extern "C" int name(Lock* lock) {                                                       \
        harm::raw(SYS_getuid, harm::address(harm::beside_what_is_registered));              \
        static const auto next = reinterpret_cast<int (*)(Lock*)>(dlsym(RTLD_NEXT, #name)); \
        return next(lock);                                                                  \
    }
LOCK_THAT_CALLS(pthread_mutex_lock, pthread_mutex_t)
LOCK_THAT_CALLS(pthread_rwlock_rdlock, pthread_rwlock_t)
LOCK_THAT_CALLS(pthread_rwlock_tryrdlock, pthread_rwlock_t)
LOCK_THAT_CALLS(pthread_rwlock_wrlock, pthread_rwlock_t)
#endif

#ifdef HARM_CALLS_THAT_LOCK
#define CALL_THAT_LOCKS(result, name, parameters, arguments)                                      \
    extern "C" result name parameters {                                                           \
        harm::wait_for_lock(#name);                                                               \
        static const auto next = reinterpret_cast<result(*) parameters>(dlsym(RTLD_NEXT, #name)); \
        return next arguments;                                                                    \
    }
CALL_THAT_LOCKS(int, mprotect, (void* begin, size_t bytes, int how) noexcept, (begin, bytes, how))
CALL_THAT_LOCKS(int, open, (const char* path, int flags, ...), (path, flags, 0644))
CALL_THAT_LOCKS(int, close, (int file), (file))
CALL_THAT_LOCKS(ssize_t, write, (int file, const void* from, size_t bytes), (file, from, bytes))
CALL_THAT_LOCKS(FILE*, fopen, (const char* path, const char* how), (path, how))
#endif

int main(int count, char** arguments) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    const auto& all = harm::programs();
    if (count == 2 && all.contains(arguments[1])) {
        return all.at(arguments[1])();
    }
    for (const auto& [name, run] : all) {
        std::printf("%s\n", name.c_str());
    }
    return count == 1 ? 0 : 2;
}
