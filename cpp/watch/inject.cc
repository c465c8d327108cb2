// The entry that the driver calls when a program that has CUDA_INJECTION64_PATH starts to use it.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>

#include <array>
#include <cstring>
#include <new>

#include "watch/calls.h"
#include "watch/driver.h"
#include "watch/faults.h"
#include "watch/watcher.h"

namespace kvfix::watch {
namespace {

// Never destroyed: threads of the program run on while it exits.
alignas(Watcher) std::array<std::byte, sizeof(Watcher)> watcher_room;
alignas(Calls) std::array<std::byte, sizeof(Calls)> calls_room;
ProcessPages pages;
Driver driver;
Calls* calls = nullptr;

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
    // The one that the program has loaded comes first: two of them in a process hinder each other.
    bool find(const char* places) {
        for (const char* name : {"libcupti.so.13", "libcupti.so.12"}) {
            if (open(name, RTLD_NOLOAD)) {
                return true;
            }
        }
        std::array<char, 1024> path;
        while (places != nullptr && *places != '\0') {
            const std::size_t length = strcspn(places, ":");
            if (length < path.size()) {
                std::memcpy(path.data(), places, length);
                path[length] = '\0';
                if (open(path.data(), 0)) {
                    return true;
                }
            }
            places += length + (places[length] == ':' ? 1 : 0);
        }
        return open("libcupti.so.13", 0) || open("libcupti.so.12", 0) || open("libcupti.so", 0);
    }
};

void on_call(void* /*user*/, int domain, std::uint32_t id, const void* data) {
    if (domain == cupti::kDriverDomain && watcher() != nullptr) {
        calls->on_call(id, *static_cast<const cupti::CallbackData*>(data));
    }
}

void in_child() {
    if (Watcher* watch = watcher()) {
        set_watcher(nullptr);
        watch->report.close_in_child();
        watch->guard.open_all_in_child();
    }
}

void at_end() {
    if (Watcher* watch = watcher()) {
        watch->report.update();
        watch->guard.open_all();
        set_watcher(nullptr);
    }
}

bool debugged() {
    FILE* status = fopen("/proc/self/status", "re");
    if (status == nullptr) {
        return false;
    }
    std::array<char, 256> line;
    long tracer = 0;
    while (fgets(line.data(), static_cast<int>(line.size()), status) != nullptr) {
        if (strncmp(line.data(), "TracerPid:", 10) == 0) {
            tracer = strtol(line.data() + 10, nullptr, 10);
        }
    }
    fclose(status);
    return tracer != 0;
}

// Why this process is not watched, null where it is.
const char* start(Watcher& watch) {
    if (const char* missing = driver.load()) {
        watch.report.note("refused: the driver has no ", missing);
        return missing;
    }
    Cupti cupti;
    if (!cupti.find(watch.settings.cupti)) {
        watch.report.note("refused: CUPTI (libcupti.so) is not found");
        return "libcupti.so";
    }
    calls = new (calls_room.data()) Calls(watch, driver);
    void* subscriber = nullptr;
    const int refused = cupti.subscribe(&subscriber, on_call, nullptr);
    if (refused != 0) {
        const bool taken = refused == cupti::kManySubscribers || refused == cupti::kLimitReached;
        std::array<char, 32> code;
        snprintf(code.data(), code.size(), " (%d)", refused);
        watch.report.note(taken ? "refused: another subscriber of CUPTI is in this process, a profiler perhaps"
                                : "refused: CUPTI takes no subscriber",
                          code.data());
        return "subscribe";
    }
    Calls::for_each_number([&](std::uint32_t number) {
        static_cast<void>(cupti.enable(1, subscriber, cupti::kDriverDomain, number));  // older ones know fewer
    });
    if (!driver.reads_kernels()) {
        watch.report.note("the driver does not tell kernels' parameters (12.4 does): kernels are not watched");
    }
    if (!driver.reads_graphs()) {
        watch.report.note("the driver does not tell the nodes of graphs: graphs are not watched");
    }
    return nullptr;
}

Settings from_environment() {
    Settings settings;
    settings.folder = getenv("KVFIX_WATCH_DIR");
    settings.cupti = getenv("KVFIX_WATCH_CUPTI");
    const char* hold_ms = getenv("KVFIX_WATCH_HOLD_MS");
    settings.hold = hold_ms != nullptr && *hold_ms != '\0';
    settings.hold_limit_ns = settings.hold ? strtoull(hold_ms, nullptr, 10) * 1'000'000U : 0;
    return settings;
}

}  // namespace
}  // namespace kvfix::watch

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
    using namespace kvfix::watch;
    const Settings settings = from_environment();
    if (settings.folder == nullptr || watcher() != nullptr) {
        return 1;
    }
    auto* watch = new (watcher_room.data()) Watcher(settings, pages);
    if (!watch->report.open_for_writing()) {
        fprintf(stderr, "trtllm-kvfix watch: no report can be written to %s; nothing is watched\n", settings.folder);
        return 1;
    }
    watch->stacks.start();
    if (start(*watch) != nullptr) {
        return 1;
    }
    const bool traced = debugged();
    if (traced) {
        watch->report.note("a debugger is attached: after a neighbour's touch a page is no longer watched");
    }
    if (!install_handlers(!traced)) {
        watch->report.note("refused: the handlers of SIGSEGV and SIGTRAP cannot be installed");
        return 1;
    }
    if (watch->stacks.python.unknown()) {
        watch->report.note("this Python is not known (CPython 3.10 to 3.13 is): its frames are missing");
    }
    set_watcher(watch);
    pthread_atfork(nullptr, nullptr, in_child);
    atexit(at_end);
    watch->report.note("watching");
    return 1;
}
