// A libcuda.so.1 for machines without one. Copies run at once, on the host; a test sets what calls answer and looks at
// what was called. The loader finds it by its name, as this program links it.
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
    std::map<std::string, cuda::Result> answers;  // what a call answers instead of working
    std::string absent;                           // an entry point that this driver does not have

    // Read by tests.
    std::vector<std::string> calls;
    std::map<std::uintptr_t, std::size_t> registered;  // address and exact size
    unsigned register_flags = 0;
    std::vector<StreamWait> waits;
    int access_order = 0;  // of the last batch
    std::size_t attribute_sets = 0;
    std::size_t first_copy = 99;
    int contexts_retained = 0;
    int shared_bytes_max = 0;          // that a kernel was allowed
    unsigned shared_bytes = 0;         // of the last launch
    cuda::Stream capturing = nullptr;  // the stream whose copies are noted instead of run
    int capture_mode = -1;
    bool captured_elsewhere = false;  // another thread captures, and forbids all what may disturb it
    bool capture_spoilt = false;      // somebody did it all the same
    std::size_t graphs = 0;           // that exist: what was captured, and what is launched

    bool called(const std::string& name) const;
};

// Locked by the driver's functions; tests look when nothing runs.
KVFIX_FAKE_API State& state();
KVFIX_FAKE_API void reset();
KVFIX_FAKE_API cuda::Context primary_context();
// Of the calling thread: its part in the captures of others, and its context.
KVFIX_FAKE_API int& own_capture_mode();
KVFIX_FAKE_API cuda::Context& current_context();

}  // namespace kvfix::fake
