#include "watch/streams.h"

#include <sys/mman.h>

namespace kvfix::watch {
namespace {

// Our calls are legal whatever another thread of the program captures.
class RelaxedCapture {
  public:
    explicit RelaxedCapture(const Driver& driver) : driver_(driver) { driver_.exchange_capture_mode(&mode_); }
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;
    ~RelaxedCapture() { driver_.exchange_capture_mode(&mode_); }

  private:
    const Driver& driver_;
    int mode_ = cuda::kCaptureRelaxed;
};

}  // namespace

bool Streams::capturing(cuda::Handle stream) const {
    int status = 0;
    return driver_.is_capturing(stream, &status) != cuda::kSuccess || status != 0;
}

void Streams::prepare(const void* context) {
    const std::lock_guard held(mutex_);
    for (std::size_t at = 0; at < pages_used_; ++at) {
        if (pages_[at].context == context) {
            return;
        }
    }
    if (context == nullptr || pages_used_ == pages_.size()) {
        return;
    }
    void* host = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED) {
        return;
    }
    cuda::Address device = 0;
    const RelaxedCapture relaxed(driver_);
    if (driver_.host_register(host, kPageBytes, cuda::kRegisterPortable | cuda::kRegisterDeviceMap) != cuda::kSuccess ||
        driver_.device_pointer(&device, host, 0) != cuda::kSuccess) {
        munmap(host, kPageBytes);
        return;
    }
    pages_[pages_used_++] = {context, static_cast<char*>(host), device, 0};
}

// A word in memory of the stream's own context, or else of another: every context can write it.
bool Streams::place(Slot& slot) {
    Page* page = nullptr;
    for (std::size_t at = 0; at < pages_used_; ++at) {
        const bool own = pages_[at].context == slot.key.context;
        if (pages_[at].context != nullptr && pages_[at].used < kPageBytes && (own || page == nullptr)) {
            page = &pages_[at];
        }
    }
    if (page == nullptr) {
        return false;
    }
    slot.owner = page->context;
    slot.flag = reinterpret_cast<volatile std::uint32_t*>(page->host + page->used);
    slot.device = page->device + page->used;
    slot.sequence = 0;
    page->used += kStride;
    return true;
}

Streams::Slot* Streams::find(const StreamKey& key) {
    const std::lock_guard held(mutex_);
    Slot* free = nullptr;
    for (std::size_t at = 0; at < slots_used_; ++at) {
        Slot& slot = slots_[at];
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
        if (slots_used_ == kSlotsMax) {
            return nullptr;
        }
        free = &slots_[slots_used_++];
    }
    free->key = key;
    free->alive = free->flag != nullptr || place(*free);
    return free->alive ? free : nullptr;
}

Mark Streams::mark(const StreamKey& key) {
    if (capturing(key.stream)) {
        return {};
    }
    Slot* slot = find(key);
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

void Streams::forget_stream(const void* context, cuda::Handle stream) {
    const std::lock_guard held(mutex_);
    for (std::size_t at = 0; at < slots_used_; ++at) {
        if (slots_[at].key.context == context && slots_[at].key.stream == stream) {
            slots_[at].alive = false;
        }
    }
}

void Streams::forget_context(const void* context) {
    const std::lock_guard held(mutex_);
    for (std::size_t at = 0; at < slots_used_; ++at) {
        Slot& slot = slots_[at];
        if (context == nullptr || slot.key.context == context || slot.owner == context) {
            slot.alive = false;
            slot.flag = nullptr;  // the device no longer knows the page
        }
    }
    for (std::size_t at = 0; at < pages_used_; ++at) {
        if (context == nullptr || pages_[at].context == context) {
            pages_[at].context = nullptr;  // the memory stays: a use that has not ended may still be asked for
        }
    }
}

}  // namespace kvfix::watch
