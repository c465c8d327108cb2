#include "watch/streams.h"

#include <sys/mman.h>

namespace kvfix::watch {
namespace {

constexpr std::size_t kPageBytes = 4096;

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

bool Streams::new_page(Page& page, const void* context) const {
    void* host = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED) {
        return false;
    }
    const RelaxedCapture relaxed(driver_);
    if (driver_.host_register(host, kPageBytes, cuda::kRegisterPortable | cuda::kRegisterDeviceMap) != cuda::kSuccess ||
        driver_.device_pointer(&page.device, host, 0) != cuda::kSuccess) {
        munmap(host, kPageBytes);
        return false;
    }
    page.context = context;
    page.host = static_cast<char*>(host);
    page.used = 0;
    return true;
}

// A word of the stream's own context: its memory goes with the context.
bool Streams::place(Slot& slot) {
    Page* page = nullptr;
    for (std::size_t at = 0; at < pages_used_; ++at) {
        if (pages_[at].context == slot.key.context && pages_[at].used < kPageBytes) {
            page = &pages_[at];
        }
    }
    if (page == nullptr) {
        if (pages_used_ == pages_.size() || !new_page(pages_[pages_used_], slot.key.context)) {
            return false;
        }
        page = &pages_[pages_used_++];
    }
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
        const bool same_context = slot.key.context == key.context && slot.flag != nullptr;
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
        if (context == nullptr || slots_[at].key.context == context) {
            slots_[at].alive = false;
            slots_[at].flag = nullptr;  // the device no longer knows the page
        }
    }
    for (std::size_t at = 0; at < pages_used_; ++at) {
        if (context == nullptr || pages_[at].context == context) {
            pages_[at].used = kPageBytes;
            pages_[at].context = nullptr;
        }
    }
}

}  // namespace kvfix::watch
