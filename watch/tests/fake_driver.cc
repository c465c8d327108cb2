// A driver and a CUPTI that are made up: streams are threads, and a test can hold them. Like a device, they reach
// memory past its protection. Only what the tests of hostrace call is there; each call tells the subscriber as CUPTI
// does.
//
// It is not kinder than the real one: calls on a stream that is captured fail, except the one that asks whether it is.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "fake_stream.h"
#include "hostrace/driver_api.h"

namespace {

constexpr int kInvalid = 1, kInvalidContext = 201, kCaptureUnsupported = 900;

using hostrace::cupti::Callback;
using hostrace::cupti::CallbackData;

Callback subscriber = nullptr;
void* subscriber_data = nullptr;
std::bitset<1024> enabled;
int failed = 0;  // calls that spoiled a capture
char context;
thread_local void* current = nullptr;

template <typename Arguments, typename Body>
int told(std::uint32_t id, const char* name, Arguments arguments, Body body) {
    int result = kSuccess;
    CallbackData data{0, name, &arguments, &result, nullptr, current};
    const bool tell = subscriber != nullptr && enabled[id];
    if (tell) {
        subscriber(subscriber_data, 1, id, &data);
    }
    result = current == nullptr ? kInvalidContext : body();  // as the driver answers a thread without a context
    data.site = 1;
    if (tell) {
        subscriber(subscriber_data, 1, id, &data);
    }
    return result;
}

// Memory of one kind. Any thread may call, as it may call the driver.
class Ranges {
  public:
    void add(Address begin, std::size_t bytes) {
        const std::lock_guard held(mutex_);
        ranges_[begin] = bytes;
    }
    std::size_t take(Address begin) {
        const std::lock_guard held(mutex_);
        const auto found = ranges_.extract(begin);
        return found.empty() ? 0 : found.mapped();
    }
    bool holds(Address at) {
        const std::lock_guard held(mutex_);
        return std::any_of(ranges_.begin(), ranges_.end(),
                           [&](const auto& each) { return each.first <= at && at < each.first + each.second; });
    }

  private:
    std::mutex mutex_;
    std::map<Address, std::size_t> ranges_;
};
// They outlive the threads.
Ranges& allocated = *new Ranges;
Ranges& registered = *new Ranges;
Ranges& given = *new Ranges;  // of the device

Address address_of(const void* memory) { return reinterpret_cast<Address>(memory); }

struct HostAlloc {
    void** result;
    std::size_t bytes;
    unsigned flags;
};
struct HostRegister {
    void* begin;
    std::size_t bytes;
    unsigned flags;
};
struct One {
    void* handle;
};
struct Two {
    void *first, *second;
};
struct Copy {
    Address dst, src;
    std::size_t bytes;
    void* stream;
};
struct Shaped {
    const void* copy;
    void* stream;
};
struct Copy2d {
    std::size_t src_x, src_y;
    int src_type;
    const void* src_host;
    Address src_device;
    void* src_array;
    std::size_t src_pitch;
    std::size_t dst_x, dst_y;
    int dst_type;
    void* dst_host;
    Address dst_device;
    void* dst_array;
    std::size_t dst_pitch;
    std::size_t width, height;
};
struct Attributes {
    int order, hints[4];
    unsigned flags;
};
struct Batch {
    Address *dsts, *srcs;
    std::size_t *bytes, count;
    Attributes* attributes;
    std::size_t *starts, attributes_count;
    void* stream;
};
struct Launch {
    void* function;
    unsigned grid[3], block[3], shared;
    void* stream;
    void** params;
    void** extra;
};
// The made-up kernel: it copies a byte, as copy_byte_of_struct of the planted programs does.
struct KernelArguments {
    Address before, to, from, after;
};

struct Copied {
    Address dst, src;
    std::size_t bytes;
    void (*function)(void*) = nullptr;  // of the host, in the place of a copy
    void* data = nullptr;
    bool enabled = true;
};
std::vector<Copied> captured;  // on the one stream that captures

int copy(std::uint32_t id, const char* name, Address dst, Address src, std::size_t bytes, void* stream) {
    return told(id, name, Copy{dst, src, bytes, stream}, [=] {
        if (stream_of(stream).capturing) {
            captured.push_back({dst, src, bytes, nullptr, nullptr, true});
        }
        return enqueue(stream, [=] { device_copy(dst, src, bytes); });
    });
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) int

API cuInit(unsigned) {
    static const bool once = [] {
        if (const char* path = getenv("CUDA_INJECTION64_PATH")) {
            void* library = dlopen(path, RTLD_NOW);
            auto entry =
                reinterpret_cast<int (*)()>(library == nullptr ? nullptr : dlsym(library, "InitializeInjection"));
            if (entry != nullptr) {
                entry();
            }
        }
        return true;
    }();
    return getenv("FAKE_DRIVER_REFUSES") != nullptr && once ? 100 : kSuccess;
}
API cuDeviceGetCount(int* count) { return *count = 1, kSuccess; }

API cuptiSubscribe(void** handle, Callback callback, void* data) {
    if (subscriber != nullptr || getenv("FAKE_CUPTI_TAKEN") != nullptr) {
        return 39;
    }
    subscriber = callback;
    subscriber_data = data;
    *handle = &context;
    return kSuccess;
}
API cuptiEnableCallback(std::uint32_t on, void*, int, std::uint32_t id) {
    enabled[id] = on != 0;
    return kSuccess;
}

API cuMemHostAlloc(void** result, std::size_t bytes, unsigned flags) {
    return told(39, "cuMemHostAlloc", HostAlloc{result, bytes, flags}, [=] {
        *result = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        allocated.add(address_of(*result), bytes);
        return kSuccess;
    });
}
API cuMemFreeHost(void* begin) {
    return told(38, "cuMemFreeHost", One{begin}, [=] {
        munmap(begin, allocated.take(address_of(begin)));
        return kSuccess;
    });
}
API cuMemHostRegister_v2(void* begin, std::size_t bytes, unsigned flags) {
    return told(379, "cuMemHostRegister", HostRegister{begin, bytes, flags},
                [=] { return registered.add(address_of(begin), bytes), kSuccess; });
}
API cuMemHostUnregister(void* begin) {
    return told(302, "cuMemHostUnregister", One{begin}, [=] { return registered.take(address_of(begin)), kSuccess; });
}
API cuMemHostGetDevicePointer_v2(Address* device, void* host, unsigned) {
    return *device = reinterpret_cast<Address>(host), kSuccess;
}
API cuMemAlloc_v2(Address* result, std::size_t bytes) {
    struct Allocate {
        Address* result;
        std::size_t bytes;
    };
    return told(243, "cuMemAlloc_v2", Allocate{result, bytes},
                [=] { return given.add(*result = address_of(std::calloc(1, bytes)), bytes), kSuccess; });
}
API cuDeviceGet(int* device, int) { return *device = 0, kSuccess; }
API cuDevicePrimaryCtxRetain(void** made, int) { return *made = &context, kSuccess; }
API cuModuleLoadData(void**, const void*) { return kSuccess; }
API cuModuleGetFunction(void**, void*, const char*) { return kSuccess; }
API cuMemsetD8_v2(Address to, unsigned char value, std::size_t bytes) {
    return std::memset(reinterpret_cast<void*>(to), value, bytes), kSuccess;
}
// On the legacy stream, and behind what the blocking ones were given.
API cuMemcpyDtoH_v2(void* to, Address from, std::size_t bytes) {
    struct Brought {
        void* to;
        Address from;
        std::size_t bytes;
    };
    return told(278, "cuMemcpyDtoH_v2", Brought{to, from, bytes}, [=] {
        for_each_stream([](Stream& stream) { stream.blocking ? stream.wait() : static_cast<void>(0); });
        return device_copy(reinterpret_cast<Address>(to), from, bytes), kSuccess;
    });
}
API cuCtxSynchronize() {
    struct Nothing {};
    return told(17, "cuCtxSynchronize", Nothing{},
                [] { return for_each_stream([](Stream& stream) { stream.wait(); }), kSuccess; });
}
API cuStreamCreate(void** stream, unsigned flags) {
    struct Create {
        void** stream;
        unsigned flags;
    };
    return told(124, "cuStreamCreate", Create{stream, flags}, [=] {
        *stream = new char;
        return stream_of(*stream).blocking = (flags & 1U) == 0, kSuccess;
    });
}
API cuStreamGetFlags(void* stream, unsigned* flags) {
    if (stream_of(stream).capturing) {
        return ++failed, kCaptureUnsupported;
    }
    return *flags = stream_of(stream).blocking ? 0 : 1, kSuccess;
}
API cuStreamQuery(void* stream) {
    return told(125, "cuStreamQuery", One{stream}, [=] { return stream_of(stream).idle() ? kSuccess : 600; });
}
// Of device memory; the rest is the program's own, and pageable.
API cuPointerGetAttribute(void* value, int, Address at) {
    return given.holds(at) ? *static_cast<int*>(value) = 2, kSuccess : kInvalid;
}
API cuStreamSynchronize(void* stream) {
    return told(126, "cuStreamSynchronize", One{stream}, [=] { return stream_of(stream).wait(), kSuccess; });
}
API cuStreamIsCapturing(void* stream, int* status) { return *status = stream_of(stream).capturing ? 1 : 0, kSuccess; }
API cuThreadExchangeStreamCaptureMode(int*) { return kSuccess; }
API cuStreamWriteValue32_v2(void* stream, Address to, std::uint32_t value, unsigned flags) {
    struct Write {
        void* stream;
        Address to;
        std::uint32_t value;
        unsigned flags;
    };
    return told(663, "cuStreamWriteValue32_v2", Write{stream, to, value, flags}, [=] {
        if (stream_of(stream).capturing) {
            return ++failed, kCaptureUnsupported;
        }
        return enqueue(stream, [=] { device_write(to, &value, sizeof value); });
    });
}
static void wait_for(Address from, std::uint32_t value) {
    for (std::uint32_t seen = value - 1; static_cast<std::int32_t>(seen - value) < 0; usleep(100)) {
        device_read(from, &seen, sizeof seen);
    }
}
API cuStreamWaitValue32_v2(void* stream, Address from, std::uint32_t value, unsigned flags) {
    struct Wait {
        void* stream;
        Address from;
        std::uint32_t value;
        unsigned flags;
    };
    return told(659, "cuStreamWaitValue32_v2", Wait{stream, from, value, flags},
                [=] { return enqueue(stream, [=] { wait_for(from, value); }); });
}
API cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
    struct HostFunction {
        void* stream;
        void (*function)(void*);
        void* data;
    };
    return told(527, "cuLaunchHostFunc", HostFunction{stream, function, data}, [=] {
        if (stream_of(stream).capturing) {
            captured.push_back({0, 0, 0, function, data, true});
        }
        return enqueue(stream, [=] { function(data); });
    });
}
API cuMemcpyHtoD_v2(Address to, const void* from, std::size_t bytes) {
    struct Sent {
        Address to;
        const void* from;
        std::size_t bytes;
    };
    return told(276, "cuMemcpyHtoD_v2", Sent{to, from, bytes},
                [=] { return device_copy(to, reinterpret_cast<Address>(from), bytes), kSuccess; });
}
API cuMemcpyHtoDAsync_v2(Address dst, const void* src, std::size_t bytes, void* stream) {
    return copy(277, "cuMemcpyHtoDAsync_v2", dst, reinterpret_cast<Address>(src), bytes, stream);
}
API cuMemcpyDtoHAsync_v2(void* dst, Address src, std::size_t bytes, void* stream) {
    return copy(279, "cuMemcpyDtoHAsync_v2", reinterpret_cast<Address>(dst), src, bytes, stream);
}
API cuMemcpyAsync(Address dst, Address src, std::size_t bytes, void* stream) {
    return copy(306, "cuMemcpyAsync", dst, src, bytes, stream);
}
API cuMemcpy2DAsync_v2(const Copy2d* copy, void* stream) {
    return told(289, "cuMemcpy2DAsync_v2", Shaped{copy, stream}, [=, it = *copy] {
        return enqueue(stream, [it] {
            const auto from = it.src_type == 1 ? reinterpret_cast<Address>(it.src_host) : it.src_device;
            const auto to = it.dst_type == 1 ? reinterpret_cast<Address>(it.dst_host) : it.dst_device;
            for (std::size_t row = 0; row < it.height; ++row) {
                device_copy(to + (it.dst_y + row) * it.dst_pitch + it.dst_x,
                            from + (it.src_y + row) * it.src_pitch + it.src_x, it.width);
            }
        });
    });
}
// As measured: small pageable sources are read in the call, larger ones later, even where the order forbids that. With
// pinned ones the order is kept.
static void batched(Address to, Address from, std::size_t size, int order, void* stream) {
    constexpr std::size_t kReadInCall = std::size_t{64} << 10;
    const bool pinned = allocated.holds(from) || registered.holds(from);
    const bool in_call = pinned ? order == hostrace::cuda::kOrderDuringCall : size <= kReadInCall && !given.holds(from);
    if (!in_call) {
        enqueue(stream, [=] { device_copy(to, from, size); });
        return;
    }
    std::vector<char> read(size);
    device_read(from, read.data(), size);
    enqueue(stream, [=] { device_write(to, read.data(), size); });
}
API cuMemcpyBatchAsync_v2(Address* dsts, Address* srcs, std::size_t* bytes, std::size_t count, Attributes* attributes,
                          std::size_t* starts, std::size_t attributes_count, void* stream) {
    return told(796, "cuMemcpyBatchAsync_v2",
                Batch{dsts, srcs, bytes, count, attributes, starts, attributes_count, stream}, [=] {
                    for (std::size_t at = 0; at < count; ++at) {
                        batched(dsts[at], srcs[at], bytes[at], attributes_count == 0 ? 0 : attributes->order, stream);
                    }
                    return kSuccess;
                });
}
API cuMemsetD8Async(Address to, unsigned char value, std::size_t bytes, void* stream) {
    struct Memset {
        Address dst;
        unsigned char value;
        std::size_t count;
        void* stream;
    };
    return told(216, "cuMemsetD8Async", Memset{to, value, bytes, stream}, [=] {
        return enqueue(stream,
                       [=] { device_write(to, std::vector<char>(bytes, static_cast<char>(value)).data(), bytes); });
    });
}
// One parameter, a struct of addresses.
API cuFuncGetParamInfo(void*, std::size_t index, std::size_t* offset, std::size_t* bytes) {
    *offset = 0;
    *bytes = sizeof(KernelArguments);
    return index == 0 ? kSuccess : kInvalid;
}
API cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** params, void** extra) {
    return told(307, "cuLaunchKernel", Launch{function, {gx, gy, gz}, {bx, by, bz}, shared, stream, params, extra},
                [=] {
                    const auto arguments = *static_cast<const KernelArguments*>(params[0]);
                    return enqueue(stream, [arguments] { device_copy(arguments.to, arguments.from, 1); });
                });
}

#include "fake_device.h"

#include "fake_memory.h"

// For the tests alone.
API fakeHold(void* stream) { return stream_of(stream).hold(), kSuccess; }
// The device is done, and nobody is told.
API fakeIdle(void* stream) { return stream_of(stream).wait(), kSuccess; }
API fakeOpen(void* stream) { return stream_of(stream).open(), kSuccess; }
API fakeCapture(void* stream, int on) { return stream_of(stream).capturing = on != 0, kSuccess; }
API fakeFailed() { return failed; }
