// Programs that protect, unmap, move and lock pinned memory by calls of their own.
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <csignal>

#include "programs.h"

namespace harm {
namespace {

constexpr std::size_t kPages = 8;

// Counts the touches that the program's own protection forbids, and lets them through.
struct Faults {
    Faults() {
        struct sigaction action{};
        action.sa_flags = SA_SIGINFO;
        action.sa_sigaction = [](int, siginfo_t* info, void*) {
            ++count;
            const auto page = reinterpret_cast<std::uintptr_t>(info->si_addr) & ~(kPage - 1);
            raw(SYS_mprotect, static_cast<long>(page), kPage, PROT_READ | PROT_WRITE);
        };
        sigaction(SIGSEGV, &action, nullptr);
    }
    static int of(char* at, bool writes) {
        count = 0;
        volatile char* const byte = at;
        writes ? static_cast<void>(*byte = 3) : static_cast<void>(*byte);
        return count;
    }
    static inline int count = 0;
};

// Registered memory of the program. The device writes its second page, and reads its sixth, until it is waited for.
struct Registered {
    explicit Registered(char* at) : memory(at) {
        cuda.pin(memory, kPages * kPage);
        begin();
    }
    void begin() {
        cuda.close();
        cuda.fetch(memory + kPage, kPage);
        cuda.send(memory + 5 * kPage, kPage);
    }
    void map_over(int protection) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        say("map", mmap(memory, kPages * kPage, protection, flags, -1, 0) == memory);
    }
    void say_faults(const char* what) {
        std::printf("%s:", what);
        for (std::size_t page = 0; page < kPages; ++page) {
            std::printf(" %d%d", Faults::of(memory + page * kPage, false), Faults::of(memory + page * kPage, true));
        }
        std::printf("\n");
    }
    Cuda cuda;
    char* memory;
    Faults faults;
};

template <typename Protect>
int protects(Protect protect) {
    Registered own(mapped(kPages * kPage));
    for (const int protection : {PROT_READ, PROT_NONE, PROT_READ | PROT_WRITE}) {
        say("protect", protect(own.memory, kPages * kPage, protection));
        own.cuda.finish();
        own.say_faults("behind it");
        own.begin();
        own.cuda.finish();
        say("protect", protect(own.memory + kPage, kPage, protection));
        own.begin();
        own.cuda.finish();
        own.say_faults("a part of it");
        own.begin();
    }
    own.cuda.finish();
    say("unregister", tried("cuMemHostUnregister", own.memory));
    return 0;
}
PROGRAM(protects_pinned_memory) {
    return protects([](char* at, std::size_t bytes, int how) { return mprotect(at, bytes, how); });
}
PROGRAM(protects_pinned_memory_by_key) {
    return protects([](char* at, std::size_t bytes, int how) { return pkey_mprotect(at, bytes, how, -1); });
}
PROGRAM(protects_pinned_memory_by_a_raw_call) {
    return protects([](char* at, std::size_t bytes, int how) {
        return raw(SYS_mprotect, address(at), static_cast<long>(bytes), how);
    });
}
PROGRAM(protects_pinned_memory_at_many_places) {
    Cuda cuda;
    const Faults faults;
    constexpr std::size_t kMany = 200;
    auto* memory = mapped(kMany * kPage);
    cuda.pin(memory, kMany * kPage);
    cuda.close();
    cuda.send(memory, kMany * kPage);
    for (std::size_t page = 0; page < kMany; page += 2) {
        mprotect(memory + page * kPage, kPage, PROT_READ);
    }
    cuda.finish();
    int count = 0;
    for (std::size_t page = 0; page < kMany; ++page) {
        count += Faults::of(memory + page * kPage, true);
    }
    say("faults", count);
    return 0;
}

// Other memory stands in the place of pinned memory that was unmapped while the device used it.
PROGRAM(unmaps_pinned_memory) {
    for (const bool by_number : {false, true}) {
        Registered own(mapped(kPages * kPage));
        say("unmap",
            by_number ? raw(SYS_munmap, address(own.memory), kPages * kPage) : munmap(own.memory, kPages * kPage));
        own.map_over(PROT_READ);
        own.cuda.open();
        own.cuda.wait();
        own.say_faults("in its place");
    }
    return 0;
}
PROGRAM(maps_over_pinned_memory) {
    Registered own(mapped(kPages * kPage));
    own.map_over(PROT_NONE);
    own.cuda.finish();
    own.say_faults("in its place");
    return 0;
}
PROGRAM(moves_pinned_memory) {
    Registered own(mapped(kPages * kPage));
    char* const old = own.memory;
    char* const place = mapped(kPages * kPage);
    std::memset(own.memory, 7, kPage);
    own.memory = static_cast<char*>(mremap(old, kPages * kPage, kPages * kPage, MREMAP_MAYMOVE | MREMAP_FIXED, place));
    say("moved", own.memory == place);
    own.say_faults("there");
    own.cuda.open();
    say("data", own.memory[1]);
    return 0;
}
// What a call that moves no bytes of shared memory answers with is the same memory at another place.
PROGRAM(maps_pinned_memory_twice) {
    Registered own(mapped(kPages * kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS));
    char* const first = own.memory + kPage;
    char* const second = static_cast<char*>(mremap(first, 0, kPage, MREMAP_MAYMOVE));
    say("faults", Faults::of(second, false) + Faults::of(second, true));
    own.cuda.finish();
    second[3] = 5;
    say("data", first[3]);
    return 0;
}
PROGRAM(detaches_pinned_memory) {
    const int id = shmget(IPC_PRIVATE, kPages * kPage, 0600);
    Registered own(static_cast<char*>(shmat(id, nullptr, 0)));
    shmctl(id, IPC_RMID, nullptr);
    say("detach", shmdt(own.memory));
    own.map_over(PROT_NONE);
    own.cuda.open();
    own.cuda.wait();
    own.say_faults("in its place");
    return 0;
}

// The kernel looks into the pages for the program, whoever protects them meanwhile.
PROGRAM(locks_and_advises_pinned_memory) {
    Registered own(mapped(kPages * kPage));
    const std::size_t bytes = kPages * kPage;
    say("mlock", mlock(own.memory, bytes));
    say("munlock", munlock(own.memory, bytes));
    say("mlock2", mlock2(own.memory, bytes, 0));
    say("msync", msync(own.memory, bytes, MS_SYNC));
    for (const int advice : {MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_DONTFORK, MADV_DOFORK, MADV_WILLNEED,
                             MADV_DONTDUMP, MADV_NOHUGEPAGE, MADV_MERGEABLE}) {
        say("madvise", madvise(own.memory, bytes, advice));
    }
    say("posix_madvise", posix_madvise(own.memory, bytes, POSIX_MADV_WILLNEED));
    own.cuda.finish();
    own.say_faults("behind them");
    say("munlock", munlock(own.memory, bytes));
    for (const int advice : {MADV_DONTNEED, MADV_FREE}) {
        own.memory[2 * kPage] = 5;
        own.begin();
        say("madvise", madvise(own.memory + 2 * kPage, kPage, advice));
        say("data", advice == MADV_DONTNEED ? own.memory[2 * kPage] : 0);
        own.cuda.finish();
    }
    own.say_faults("behind them");
    return 0;
}
PROGRAM(locks_and_advises_by_a_raw_call) {
    Registered own(mapped(kPages * kPage));
    constexpr long bytes = kPages * kPage;
    say("mlock", raw(SYS_mlock, address(own.memory), bytes));
    say("madvise", raw(SYS_madvise, address(own.memory), bytes, MADV_POPULATE_WRITE));
    own.cuda.finish();
    own.say_faults("behind them");
    return 0;
}
PROGRAM(removes_shared_pinned_memory) {
    Registered own(mapped(kPages * kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS));
    own.memory[0] = 5;
    say("madvise", madvise(own.memory, kPages * kPage, MADV_REMOVE));
    say("data", own.memory[0]);
    own.cuda.finish();
    own.say_faults("behind it");
    return 0;
}
PROGRAM(child_without_pinned_memory) {
    Registered own(mapped(kPages * kPage));
    say("madvise", madvise(own.memory, kPages * kPage, MADV_DONTFORK));
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        char* const there = static_cast<char*>(mmap(own.memory, kPages * kPage, PROT_NONE, flags, -1, 0));
        own.memory = there;
        own.say_faults("in the child");
        std::fflush(stdout);
        _exit(7);
    }
    int status = 0;
    static_cast<void>(waitpid(child, &status, 0));
    say("child", WEXITSTATUS(status));
    own.cuda.finish();
    own.say_faults("behind it");
    return 0;
}

}  // namespace
}  // namespace harm
