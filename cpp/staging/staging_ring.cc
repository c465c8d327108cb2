#include "staging/staging_ring.h"

#include <chrono>
#include <exception>
#include <string>

#include "core/check.h"

namespace kvfix {

StagingRing::StagingRing(const std::shared_ptr<Device>& device, std::size_t slots, std::size_t slot_bytes)
    : device_(device), slot_bytes_(slot_bytes) {
    slots_.reserve(slots);
    for (std::size_t i = 0; i < slots; ++i) {
        slots_.push_back(std::make_unique<Slot>(device, slot_bytes));
    }
}

StagingRing::~StagingRing() {
    try {
        drain();
    } catch (const DeviceError&) {  // the slots concerned are lost, and a destructor can do no more
    }
    for (std::unique_ptr<Slot>& slot : slots_) {
        if (slot->lost) {
            static_cast<void>(slot.release());  // the device may still read it: leak rather than reuse
        }
    }
}

void StagingRing::drain() {
    std::exception_ptr first_failure;
    for (const std::unique_ptr<Slot>& slot : slots_) {
        if (slot->lost) {
            continue;
        }
        try {
            slot->fence.wait();
        } catch (const DeviceError&) {
            slot->lost = true;
            first_failure = first_failure ? first_failure : std::current_exception();
        }
    }
    if (first_failure) {
        std::rethrow_exception(first_failure);
    }
}

bool StagingRing::drop_failed() {
    bool any = false;
    for (const std::unique_ptr<Slot>& slot : slots_) {
        try {
            static_cast<void>(slot->lost || slot->fence.passed());
        } catch (const DeviceError&) {
            slot->lost = any = true;
        }
    }
    return any;
}

StagingSlot StagingRing::take() {
    const std::size_t index = next_usable();
    Slot& slot = *slots_[index];
    check(!slot.taken, "a staging slot is taken twice");
    if (slot.fence.pending()) {
        await(slot);
        look_ahead(index);
    }
    counters_->count_taken();
    slot.taken = true;
    return {*this, index};
}

std::size_t StagingRing::next_usable() const {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const std::size_t index = (next_ + i) % slots_.size();
        if (!slots_[index]->lost) {
            return index;
        }
    }
    throw DeviceError("none of " + std::to_string(slots_.size()) +
                      " staging slots is left: the streams that used them failed; close the stager and make another");
}

// The driver answers the first question after other work ten times as slowly as those behind it. So it is asked about
// the slots behind this one as well, and the next calls need not ask.
void StagingRing::look_ahead(std::size_t index) {
    for (std::size_t i = 1; i < slots_.size(); ++i) {
        Slot& slot = *slots_[(index + i) % slots_.size()];
        try {
            if (!slot.lost && !slot.fence.passed()) {
                return;
            }
        } catch (const DeviceError&) {  // whoever takes that slot will hear of it
            return;
        }
    }
}

void StagingRing::await(Slot& slot) {
    try {
        if (slot.fence.passed()) {
            return;
        }
        counters_->count_wait();
        const auto begin = std::chrono::steady_clock::now();
        slot.fence.wait();
        const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - begin;
        counters_->count_wait_ns(static_cast<std::uint64_t>(waited.count()));
    } catch (const DeviceError&) {
        slot.lost = true;
        throw;
    }
}

StagingSlot::~StagingSlot() {
    if (ring_ == nullptr) {
        return;
    }
    StagingRing::Slot& slot = *ring_->slots_[index_];
    slot.taken = false;
    if (lent_to_) {
        try {
            ring_->device_->synchronize(*lent_to_);
        } catch (const DeviceError&) {
            slot.lost = true;
        }
    }
}

void* StagingSlot::data() const { return ring_->slots_[index_]->memory.data(); }

std::size_t StagingSlot::bytes() const { return ring_->slot_bytes_; }

std::uintptr_t StagingSlot::lend(StreamHandle stream) {
    // One fence ends the use, and a fence belongs to one stream.
    check(lent_to_.value_or(stream) == stream, "a staging slot is lent to two streams");
    lent_to_ = stream;
    return ring_->slots_[index_]->memory.address();
}

std::uintptr_t StagingSlot::lend_to_kernels(StreamHandle stream) {
    lend(stream);
    return ring_->slots_[index_]->memory.device_address();
}

void StagingSlot::submit() && {
    check(lent_to_.has_value(), "a staging slot is submitted that was never lent");
    StagingRing::Slot& slot = *ring_->slots_[index_];
    slot.fence.raise(*lent_to_);  // if this throws, the slot is still ours, and the destructor waits for the stream
    slot.taken = false;
    ring_->last_ = &slot;
    ring_->next_ = (index_ + 1) % ring_->slots_.size();
    ring_ = nullptr;
}

}  // namespace kvfix
