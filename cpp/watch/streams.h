// A word of pinned memory for each stream, into which the stream writes how far it has come.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "watch/driver.h"
#include "watch/owned_lock.h"

namespace kvfix::watch {

struct StreamKey {
    const void* context = nullptr;
    cuda::Handle stream = nullptr;
    int thread = 0;  // of streams that each thread has for itself
    bool operator==(const StreamKey&) const = default;
};

struct Mark {
    const volatile std::uint32_t* flag = nullptr;  // null where the stream took none
    std::uint32_t sequence = 0;
};

class Streams {
  public:
    explicit Streams(const Driver& driver) : driver_(driver) {}

    // Make room for the words of a context's streams. It may wait for the device, so a use does not do it.
    void prepare(const void* context);
    // Let the stream say when everything that was enqueued until now is done. Nothing happens while it is capturing.
    Mark mark(const StreamKey& key);
    bool capturing(cuda::Handle stream) const;
    void forget_stream(const void* context, cuda::Handle stream);
    // Null for all of them.
    void forget_context(const void* context);

  private:
    static constexpr std::size_t kSlotsMax = 2048;
    static constexpr std::size_t kStride = 16;  // in bytes, from word to word
    static constexpr std::size_t kPageBytes = kSlotsMax * kStride;
    struct Slot {
        OwnedLock lock;  // numbers are written in the order in which they are taken
        StreamKey key;
        bool alive = false;
        const void* owner = nullptr;  // the context with which the word's memory goes
        volatile std::uint32_t* flag = nullptr;
        cuda::Address device = 0;
        std::uint32_t sequence = 0;
    };
    struct Page {
        const void* context = nullptr;
        char* host = nullptr;
        cuda::Address device = 0;
        std::size_t used = 0;
    };

    Slot* find(const StreamKey& key);
    bool place(Slot& slot);

    const Driver& driver_;
    std::mutex mutex_;
    std::array<Slot, kSlotsMax> slots_{};
    std::size_t slots_used_ = 0;
    std::array<Page, 64> pages_{};
    std::size_t pages_used_ = 0;
};

}  // namespace kvfix::watch
