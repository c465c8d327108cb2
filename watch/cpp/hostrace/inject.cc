// The entry that the driver calls when a program that has CUDA_INJECTION64_PATH starts to use it.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>

#include <array>
#include <cstring>
#include <string>

#include "hostrace/calls.h"
#include "hostrace/driver.h"
#include "hostrace/errno_kept.h"
#include "hostrace/faults.h"
#include "hostrace/interpose.h"
#include "hostrace/lookups.h"
#include "hostrace/machine.h"
#include "hostrace/raw_calls.h"
#include "hostrace/watcher.h"

namespace hostrace {
namespace {

ProcessPages pages;
bool asked = false;  // by the driver
Driver driver;
Calls* calls = nullptr;  // as the watcher never destroyed: threads of the program run on while it exits

struct Cupti {
    int (*subscribe)(void** subscriber, cupti::Callback callback, void* user) = nullptr;
    int (*enable)(std::uint32_t on, void* subscriber, int domain, std::uint32_t id) = nullptr;

    bool open(const char* path, int flags) {
        void* library = dlopen(path, RTLD_NOW | flags);
        if (library == nullptr) {
            return false;
        }
        subscribe = reinterpret_cast<decltype(subscribe)>(dlsym(library, "cuptiSubscribe"));
        enable = reinterpret_cast<decltype(enable)>(dlsym(library, "cuptiEnableCallback"));
        return subscribe != nullptr && enable != nullptr;
    }
    // The one that the program has loaded comes first: two of them in a process hinder each other. `places` are
    // separated by colons.
    bool find(const char* places) {
        if (open("libcupti.so.13", RTLD_NOLOAD) || open("libcupti.so.12", RTLD_NOLOAD)) {
            return true;
        }
        std::string paths = places == nullptr ? "" : places;
        char* rest = nullptr;
        for (const char* path = strtok_r(paths.data(), ":", &rest); path != nullptr;
             path = strtok_r(nullptr, ":", &rest)) {
            if (open(path, 0)) {
                return true;
            }
        }
        return open("libcupti.so.13", 0) || open("libcupti.so.12", 0) || open("libcupti.so", 0);
    }
};

void on_call(void* /*user*/, int domain, std::uint32_t id, const void* data) {
    const Watcher* watch = domain == cupti::kDriverDomain ? watcher() : nullptr;
    if (watch != nullptr && !watch->guard.ended()) {
        calls->on_call(id, *static_cast<const cupti::CallbackData*>(data));
    }
}

// Other threads run on, some of them in the middle of a callback of ours, or in a fault: the watcher stays.
void at_end() {
    if (Watcher* watch = watcher()) {
        watch->guard.end();
    }
}

// The driver would have called us when CUDA started, but for a variable that is gone by then.
void say_if_unwatched() {
    const char* folder = getenv("HOSTRACE_DIR");
    const char* injected = getenv("CUDA_INJECTION64_PATH");
    Dl_info ours{};
    dladdr(reinterpret_cast<void*>(&say_if_unwatched), &ours);
    const bool ours_is_asked_for = injected != nullptr && strcmp(injected, ours.dli_fname) == 0;
    if (folder != nullptr && !asked && !ours_is_asked_for &&
        dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) != nullptr) {
        Report::say_unwatched(folder,
                              "refused: the program took our library out of CUDA_INJECTION64_PATH, or put another tool "
                              "there (a launch script, perhaps): the driver did not load it");
    }
}

[[gnu::constructor]] void look_at_the_end() { atexit(say_if_unwatched); }

bool asked_for(const char* variable) {
    const char* value = getenv(variable);
    return value != nullptr && strcmp(value, "1") == 0;
}

bool debugged() {
    std::array<char, 4096> status{};
    const int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    const bool any = read(file, status.data(), status.size() - 1) > 0;
    close(file);
    const char* tracer = any ? strstr(status.data(), "TracerPid:") : nullptr;
    return tracer != nullptr && strtol(tracer + strlen("TracerPid:"), nullptr, 10) != 0;
}

void keep_raw_calls_from_failing(Watcher& watch) {
    if (!has_code_of_go()) {
        if (!calls_are_bound_past_us()) {
            ask_for_raw_calls();
        }
    } else {
        masks_change_unseen();
        stop_protecting(
            "there is code of Go here, which calls the kernel past the C library: no page is protected, and only "
            "changes of what copies read are seen");
    }
    if (const char* why = why_nothing_is_protected()) {
        watch.report.note(why);
    }
}

// False where this process cannot be watched, with a note that says why.
bool start(Watcher& watch) {
    if (!in_front()) {
        watch.report.note(
            "refused: the program took our library out of LD_PRELOAD, or put another in front of it (a launch script, "
            "perhaps): calls into protected memory would fail, so nothing is protected");
        return false;
    }
    if (const char* missing = driver.load()) {
        watch.report.note("refused: the driver has no ", missing);
        return false;
    }
    Cupti cupti;
    if (!cupti.find(getenv("HOSTRACE_CUPTI"))) {
        watch.report.note("refused: CUPTI (libcupti.so) is not found");
        return false;
    }
    calls = new Calls(watch, driver);
    void* subscriber = nullptr;
    const int refused = cupti.subscribe(&subscriber, on_call, nullptr);
    if (refused != 0) {
        const bool taken = refused == cupti::kManySubscribers || refused == cupti::kLimitReached;
        watch.report.note(taken ? "refused: another subscriber of CUPTI is in this process, a profiler perhaps, error "
                                : "refused: CUPTI takes no subscriber, error ",
                          std::to_string(refused).c_str());
        return false;
    }
    // Older ones know fewer of them.
#define CALL(name, number, when, handler, per_thread) cupti.enable(1, subscriber, cupti::kDriverDomain, number);
#include "hostrace/calls.def"
#undef CALL
    if (driver.without_kernels != nullptr) {
        watch.report.note("the driver does not tell kernels' parameters (12.4 does): kernels are not watched");
    }
    if (driver.without_graphs != nullptr) {
        watch.report.note("the driver does not tell the nodes of graphs: graphs are not watched");
    }
    keep_raw_calls_from_failing(watch);
    const bool traced = debugged();
    if (traced) {
        watch.report.note("a debugger is attached: after a neighbour's touch a page is no longer watched");
    }
    if (!machine::kSteps) {
        watch.report.note(
            "this processor steps over no instruction: after a neighbour's touch a page is no longer watched");
    }
    if (watch.stacks.python.unknown()) {
        watch.report.note("this Python is not known (CPython 3.10 to 3.13 is): its frames are missing");
    }
    if (!install_handlers(!traced)) {
        watch.report.note("refused: the handlers of SIGSEGV and SIGTRAP cannot be installed");
        return false;
    }
    return true;
}

}  // namespace
}  // namespace hostrace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
    using namespace hostrace;
    const ErrnoKept of_the_program;
    asked = true;
    const char* folder = getenv("HOSTRACE_DIR");
    if (folder == nullptr || watcher() != nullptr) {
        return 1;
    }
    const char* hold_ms = getenv("HOSTRACE_HOLD_MS");
    const std::uint64_t hold_ns = hold_ms == nullptr ? 0 : strtoull(hold_ms, nullptr, 10) * 1'000'000U;
    const bool by_order = !asked_for("HOSTRACE_ONLY_OBSERVED");
    static auto* const watch = new Watcher(folder, hold_ns, by_order, asked_for("HOSTRACE_GATES"), pages);
    if (!watch->report.open_for_writing()) {
        fprintf(stderr, "hostrace: no report can be written to %s; nothing is watched\n", folder);
        return 1;
    }
    watch->stacks.start();
    if (start(*watch)) {
        set_watcher(watch);
        ask_for_raw_calls_of_this_thread();
        pthread_atfork(nullptr, nullptr, end_in_child);
        atexit(at_end);
        watch->report.note("watching");
    }
    return 1;
}
