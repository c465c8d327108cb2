// A word of pinned memory for each stream, into which the stream writes how far it has come.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "hostrace/driver.h"
#include "hostrace/owned_lock.h"
#include "hostrace/use.h"

namespace hostrace {

struct StreamKey {
    const void* context = nullptr;
    cuda::Handle stream = nullptr;
    int thread = 0;  // of streams that each thread has for itself
    bool operator==(const StreamKey&) const = default;
};

class Streams {
  public:
    explicit Streams(const Driver& driver) : driver_(driver) {}

    // Costs one read where the context was asked for last.
    bool prepared(const void* context) const {
        return context == nullptr || context == last_.load(std::memory_order_relaxed);
    }
    // Make room for the words of a context's streams. It may wait for the device, so no use does it: the first call that
    // is seen in the context does, before it gives the device anything to wait for. One that refuses is not asked again.
    void prepare(const void* context) {
        const std::lock_guard held(mutex_);
        last_.store(context, std::memory_order_relaxed);
        const auto of_context = [&](const Page& page) { return page.context == context; };
        if (pages_.size() == kPagesMax || std::any_of(pages_.begin(), pages_.end(), of_context)) {
            return;
        }
        void* host = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (host == MAP_FAILED) {
            return;
        }
        // Our calls are legal whatever another thread of the program captures.
        int mode = cuda::kCaptureRelaxed;
        driver_.exchange_capture_mode(&mode);
        cuda::Address device = 0;
        const unsigned flags = cuda::kRegisterPortable | cuda::kRegisterDeviceMap;
        if (driver_.host_register(host, kPageBytes, flags) == cuda::kSuccess &&
            driver_.device_pointer(&device, host, 0) == cuda::kSuccess) {
            pages_.push_back({context, static_cast<char*>(host), device});
        } else {
            munmap(host, kPageBytes);
            pages_.push_back({context, nullptr, 0, kPageBytes});
        }
        driver_.exchange_capture_mode(&mode);
    }

    // Let the stream say when everything that was enqueued until now is done. Nothing happens while it is capturing.
    Mark mark(const StreamKey& key) {
        Slot* slot = capturing(key.stream) ? nullptr : find(key);
        if (slot == nullptr) {
            return {};
        }
        const std::lock_guard<OwnedLock> held(slot->lock);
        const std::uint32_t sequence = slot->sequence + 1;
        if (driver_.write_value(key.stream, slot->device, sequence, 0) != cuda::kSuccess) {
            return {};
        }
        slot->sequence = sequence;
        return {slot->flag, sequence};
    }

    bool capturing(cuda::Handle stream) const {
        int status = 0;
        return driver_.is_capturing(stream, &status) != cuda::kSuccess || status != 0;
    }

    void forget_stream(const void* context, cuda::Handle stream) {
        const std::lock_guard held(mutex_);
        for (Slot& slot : slots_) {
            slot.alive = slot.alive && !(slot.key.context == context && slot.key.stream == stream);
        }
    }

    // Streams that each thread has for itself.
    void forget_thread(int thread) {
        const std::lock_guard held(mutex_);
        for (Slot& slot : slots_) {
            slot.alive = slot.alive && slot.key.thread != thread;
        }
    }

    // Null for all of them.
    void forget_context(const void* context) {
        const std::lock_guard held(mutex_);
        last_.store(nullptr, std::memory_order_relaxed);
        for (Slot& slot : slots_) {
            if (context == nullptr || slot.key.context == context || slot.owner == context) {
                slot.alive = false;
                slot.flag = nullptr;  // the device no longer knows the page
            }
        }
        for (Page& page : pages_) {
            if (context == nullptr || page.context == context) {
                page.context = nullptr;  // the memory stays: a use that has not ended may still be asked for
            }
        }
    }

  private:
    static constexpr std::size_t kSlotsMax = 2048;
    static constexpr std::size_t kPagesMax = 64;
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

    Slot* find(const StreamKey& key) {
        const std::lock_guard held(mutex_);
        Slot* free = nullptr;
        for (Slot& slot : slots_) {
            if (slot.alive && slot.key == key) {
                return &slot;
            }
            // A stream that was destroyed may still have writes on their way: its word is free when the last has come.
            const bool same_context = slot.owner == key.context && slot.flag != nullptr;
            if (!slot.alive && (slot.flag == nullptr || (same_context && *slot.flag == slot.sequence))) {
                free = &slot;
            }
        }
        if (free == nullptr) {
            if (slots_.size() == kSlotsMax) {
                return nullptr;
            }
            free = &slots_.emplace_back();
        }
        free->key = key;
        free->alive = free->flag != nullptr || place(*free);
        return free->alive ? free : nullptr;
    }

    // A word in memory of the stream's own context, or else of another: every context can write it.
    bool place(Slot& slot) {
        Page* chosen = nullptr;
        for (Page& page : pages_) {
            const bool own = page.context == slot.key.context;
            if (page.context != nullptr && page.used < kPageBytes && (own || chosen == nullptr)) {
                chosen = &page;
            }
        }
        if (chosen == nullptr) {
            return false;
        }
        slot.owner = chosen->context;
        slot.flag = reinterpret_cast<volatile std::uint32_t*>(chosen->host + chosen->used);
        slot.device = chosen->device + chosen->used;
        slot.sequence = 0;
        chosen->used += kStride;
        return true;
    }

    const Driver& driver_;
    std::mutex mutex_;
    std::deque<Slot> slots_;  // which stay where they are
    std::vector<Page> pages_;
    std::atomic<const void*> last_{nullptr};  // for which room was asked
};

}  // namespace hostrace
