#include "staging/staging_ring.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "core/check.h"

namespace kvfix {

StagingRing::StagingRing(const std::shared_ptr<Device>& device, std::size_t slots, std::size_t slot_bytes)
    : device_(device), slot_bytes_(slot_bytes), slots_(std::make_unique<std::deque<Slot>>()) {
    for (std::size_t i = 0; i < slots; ++i) {
        slots_->emplace_back(device, slot_bytes);
    }
}

StagingRing::~StagingRing() {
    try {
        drain();
        const bool known = std::ranges::none_of(*slots_, &Slot::lost);
        if (known) {
            return;
        }
    } catch (const DeviceError&) {
    }
    static_cast<void>(slots_.release());  // the device may still read them: leak rather than reuse
}

void StagingRing::drain() {
    for (Slot& slot : *slots_) {
        slot.fence.wait();
    }
}

StagingSlot StagingRing::take() {
    Slot& slot = (*slots_)[next_];
    check(!slot.taken, "a staging slot is taken twice");
    if (slot.lost) {
        throw DeviceError(
            "staging slot " + std::to_string(next_) +
            " was lent to a stream that could not be waited for; the device context is broken, close the stager");
    }
    if (!slot.fence.passed()) {
        const auto begin = std::chrono::steady_clock::now();
        slot.fence.wait();
        ++stats_.waits;
        stats_.wait_ns += static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count());
    }
    ++stats_.taken;
    slot.taken = true;
    return {*this, next_};
}

StagingSlot::~StagingSlot() {
    if (ring_ == nullptr) {
        return;
    }
    StagingRing::Slot& slot = (*ring_->slots_)[index_];
    slot.taken = false;
    if (lent_) {
        try {
            ring_->device_->synchronize(lent_to_);
        } catch (const DeviceError&) {
            slot.lost = true;
        }
    }
}

void* StagingSlot::data() const { return (*ring_->slots_)[index_].memory.data(); }

std::size_t StagingSlot::bytes() const { return ring_->slot_bytes_; }

std::uintptr_t StagingSlot::lend(StreamHandle stream) {
    lent_ = true;
    lent_to_ = stream;
    return (*ring_->slots_)[index_].memory.address();
}

std::uintptr_t StagingSlot::lend_to_kernels(StreamHandle stream) {
    lend(stream);
    return (*ring_->slots_)[index_].memory.device_address();
}

void StagingSlot::submit(StreamHandle stream) && {
    StagingRing::Slot& slot = (*ring_->slots_)[index_];
    slot.fence.raise(stream);  // if this throws, the slot is still ours, and the destructor waits for the stream
    slot.taken = false;
    ring_->last_ = &slot;
    ring_->next_ = (index_ + 1) % ring_->slots_->size();
    ring_ = nullptr;
}

}  // namespace kvfix
