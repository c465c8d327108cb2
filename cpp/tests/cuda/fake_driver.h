// A libcuda.so.1 for machines without one. Copies run at once, on the host. A test sets what calls answer and looks at
// which were made. The loader finds the library by its name, because the program links it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device/cuda_api.h"

#define KVFIX_FAKE_API [[gnu::visibility("default")]]

namespace kvfix::fake {

struct StreamWait {
    cuda::Stream stream;
    const std::uint32_t* word;
    std::uint32_t value;
    unsigned flags;

    bool passed() const { return static_cast<std::int32_t>(*word - value) >= 0; }
};

struct Copied {
    cuda::Address dst;
    cuda::Address src;
    std::size_t bytes;
};

struct State {
    // Set by tests.
    int version = cuda::kVersion13_0;
    int gpus = 1;
    int compute_major = 9;
    std::map<std::string, cuda::Result> answers;  // answers of calls that do not work
    std::string absent;                           // an entry point that this driver does not have

    // Read by tests.
    std::vector<std::string> calls;
    std::map<std::uintptr_t, std::size_t> registered;  // address and exact size
    unsigned register_flags = 0;
    std::vector<StreamWait> waits;
    int access_order = 0;  // order of the last batch
    std::size_t attribute_sets = 0;
    std::size_t first_copy = 99;
    int contexts_retained = 0;
    int shared_bytes_max = 0;          // bytes that a kernel was allowed
    unsigned shared_bytes = 0;         // bytes of the last launch
    cuda::Stream capturing = nullptr;  // the stream whose copies are noted instead of run
    int capture_mode = -1;
    bool captured_elsewhere = false;       // another thread captures, and forbids every call that may disturb it
    bool capture_spoilt = false;           // such a call was made all the same
    std::vector<std::string> in_captures;  // calls meanwhile of threads that had not left it, refused or not
    std::size_t graphs = 0;                // that exist: captured ones and launchable ones

    bool called(const std::string& name) const;
};

// The driver's functions lock it; tests look at it while nothing runs.
KVFIX_FAKE_API State& state();
KVFIX_FAKE_API void reset();
KVFIX_FAKE_API cuda::Context primary_context();
// Pinned memory as torch takes it. We do not, so the entry point is not among those that are looked up.
KVFIX_FAKE_API cuda::Result allocate_pinned(void** memory, std::size_t bytes);
// The calling thread's part in the captures of others, and its context.
KVFIX_FAKE_API int& own_capture_mode();
KVFIX_FAKE_API cuda::Context& current_context();

}  // namespace kvfix::fake
