// Gates hold a stream without any timing: the stream waits on a word of pinned memory that the host writes. A word is
// used again only after the wait on it has passed, which an event behind the wait shows.
//
// A held stream takes a few thousand operations (3,060 with driver 580). Then the driver blocks the thread that
// enqueues the next one, perhaps while it holds its own locks. So opening a gate takes no lock and calls no driver, and
// another thread can always do it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "device/cuda_memory.h"

namespace kvfix::cuda {

class GatePool {
  public:
    // Maps its words and creates its events now. Later, with a stream held, the driver might wait for that stream.
    GatePool(const PrimaryContext& context, PinnedMaps& maps);
    GatePool(const GatePool&) = delete;
    GatePool& operator=(const GatePool&) = delete;
    ~GatePool();  // opens what is closed, so that no stream stays held

    GateHandle close(Stream stream);
    void open(GateHandle handle);

  private:
    struct alignas(64) Word {
        std::uint32_t value;  // 0 holds, 1 lets pass
    };
    struct Gate {
        Event passed = nullptr;
        std::uint32_t uses = 0;  // numbers the handles, so that a handle from an earlier use is refused
        std::atomic<std::uint32_t> closed_by{0};  // the use that closed it; 0 once it is open
    };
    static constexpr std::size_t kGates = 64;
    static constexpr std::size_t kWordBytes = kGates * sizeof(Word);

    std::size_t reserve();
    void store(std::size_t index, std::uint32_t value);

    const PrimaryContext& context_;
    PinnedMaps& maps_;
    Word* words_;
    Address words_address_;
    std::mutex mutex_;  // guards the choice of a gate
    std::array<Gate, kGates> gates_;
};

}  // namespace kvfix::cuda
