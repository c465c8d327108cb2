// As much of hostrace as it cannot do without, to see where its time goes. Loaded by the driver as the library is, with
// HOSTRACE_LAYER=injected it does nothing, with HOSTRACE_LAYER=loaded it loads CUPTI besides, with
// HOSTRACE_LAYER=subscribed it is CUPTI's subscriber and asks for no call; with HOSTRACE_LAYER=callback it asks for the
// same calls and does nothing, or for those alone that HOSTRACE_CALLS names: `cuLaunch` for what begins so, `!cuLaunch`
// for the others. With HOSTRACE_LAYER=flag it lets the stream write a number behind each copy, too; with
// HOSTRACE_LAYER=pages it makes the pages of the source read-only besides, until the next wait. And the calls of
// mprotect alone, without an interpreter between them.
#include <dlfcn.h>
#include <sys/mman.h>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "hostrace/driver_api.h"

namespace {

namespace cuda = hostrace::cuda;
namespace cupti = hostrace::cupti;

constexpr std::size_t kPage = 4096;

cuda::Result (*write_value)(cuda::Handle, cuda::Address, std::uint32_t, unsigned);
cuda::Result (*is_capturing)(cuda::Handle, int*);
cuda::Result (*host_register)(void*, std::size_t, unsigned);
cuda::Result (*device_pointer)(cuda::Address*, void*, unsigned);
alignas(kPage) std::uint32_t words[kPage / sizeof(std::uint32_t)];
bool writes = false, protects = false;
struct {
    std::uintptr_t begin;
    std::size_t bytes;
} spans[1024];
std::size_t spans_used = 0;
cuda::Address word = 0;
std::uint32_t sequence = 0;

template <typename F>
void find(F& call, void* library, const char* name) {
    call = reinterpret_cast<F>(dlsym(library, name));
}

bool prepare(bool pins) {
    static bool asked = false;
    if (pins && !asked) {
        asked = true;
        if (host_register(words, kPage, cuda::kRegisterPortable | cuda::kRegisterDeviceMap) != cuda::kSuccess ||
            device_pointer(&word, words, 0) != cuda::kSuccess) {
            word = 0;
        }
    }
    return word != 0;
}

void protect(std::uintptr_t begin, std::size_t bytes) {
    const auto first = begin & ~(kPage - 1);
    spans[spans_used] = {first, ((begin + bytes + kPage - 1) & ~(kPage - 1)) - first};
    if (mprotect(reinterpret_cast<void*>(first), spans[spans_used].bytes, PROT_READ) == 0) {
        ++spans_used;
    }
}

void open_all() {
    while (spans_used > 0) {
        --spans_used;
        mprotect(reinterpret_cast<void*>(spans[spans_used].begin), spans[spans_used].bytes, PROT_READ | PROT_WRITE);
    }
}

struct Copy {  // as CUPTI hands over what such a call was given
    cuda::Address dst, src;
    std::size_t bytes;
    cuda::Handle stream;
};

void on_call(void*, int, std::uint32_t id, const void* raw) {
    const auto& data = *static_cast<const cupti::CallbackData*>(raw);
    const bool copies = id == 277 || id == 279 || id == 281 || id == 306;
    const bool pins = id == 39 || id == 271 || id == 294;
    const bool waits = id == 126 || id == 17 || id == 800;
    static thread_local bool inside = false;
    if (!writes || inside || data.site != cupti::kExit || (!copies && !pins && !waits)) {
        return;
    }
    inside = true;
    int capturing = 0;
    if (prepare(pins) && copies) {
        const auto& copy = *static_cast<const Copy*>(data.arguments);
        if (is_capturing(copy.stream, &capturing) == cuda::kSuccess && capturing == 0) {
            static_cast<void>(write_value(copy.stream, word, ++sequence, 0));
        }
        if (protects && spans_used < std::size(spans)) {
            protect(copy.src, copy.bytes);
        }
    } else if (waits) {
        open_all();
    }
    inside = false;
}

bool wanted(const char* call) {
    const char* calls = std::getenv("HOSTRACE_CALLS");
    if (calls == nullptr) {
        return true;
    }
    const bool others = *calls == '!';
    calls += others ? 1 : 0;
    return (std::strncmp(call, calls, std::strlen(calls)) == 0) != others;
}

void* open_cupti() {
    static char places[4096];
    std::strncpy(places, std::getenv("HOSTRACE_CUPTI") == nullptr ? "" : std::getenv("HOSTRACE_CUPTI"), 4095);
    void* library = nullptr;
    for (char* rest = places; library == nullptr && rest != nullptr;) {
        char* place = strsep(&rest, ":");
        library = *place == '\0' ? nullptr : dlopen(place, RTLD_NOW);
    }
    return library;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
    const char* layer = std::getenv("HOSTRACE_LAYER");
    if (layer == nullptr || std::strcmp(layer, "injected") == 0) {
        return 1;
    }
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void* profiler = open_cupti();
    if (driver == nullptr || profiler == nullptr || std::strcmp(layer, "loaded") == 0) {
        return 1;
    }
    protects = std::strcmp(layer, "pages") == 0;
    writes = protects || std::strcmp(layer, "flag") == 0;
    find(write_value, driver, "cuStreamWriteValue32_v2");
    find(is_capturing, driver, "cuStreamIsCapturing");
    find(host_register, driver, "cuMemHostRegister_v2");
    find(device_pointer, driver, "cuMemHostGetDevicePointer_v2");
    int (*subscribe)(void**, cupti::Callback, void*) = nullptr;
    int (*enable)(std::uint32_t, void*, int, std::uint32_t) = nullptr;
    find(subscribe, profiler, "cuptiSubscribe");
    find(enable, profiler, "cuptiEnableCallback");
    void* subscriber = nullptr;
    if (subscribe(&subscriber, on_call, nullptr) == 0 && std::strcmp(layer, "subscribed") != 0) {
#define CALL(name, number, when, handler, per_thread) \
    enable(wanted(#name) ? 1 : 0, subscriber, cupti::kDriverDomain, number);
#include "hostrace/calls.def"
#undef CALL
    }
    return 1;
}

// Nanoseconds for each buffer. All of them are written, then made read-only one after the other, and then writable
// again.
extern "C" __attribute__((visibility("default"))) double protect_twice_ns(void* const* begins, std::size_t count,
                                                                          std::size_t bytes) {
    for (std::size_t at = 0; at < count; ++at) {
        *static_cast<volatile char*>(begins[at]) = 1;
    }
    const auto begin = std::chrono::steady_clock::now();
    for (const int protection : {PROT_READ, PROT_READ | PROT_WRITE}) {
        for (std::size_t at = 0; at < count; ++at) {
            const auto from = reinterpret_cast<std::uintptr_t>(begins[at]);
            const auto first = from & ~(kPage - 1);
            const auto end = (from + bytes + kPage - 1) & ~(kPage - 1);
            if (mprotect(reinterpret_cast<void*>(first), end - first, protection) != 0) {
                return -1;
            }
        }
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    return took.count() / static_cast<double>(count);
}
