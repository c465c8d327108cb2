#include "device/cuda_gates.h"

namespace kvfix::cuda {

constexpr unsigned kIndexBits = 8;  // in a handle; the remaining bits number the use

GatePool::GatePool(const PrimaryContext& context, PinnedMaps& maps)
    : context_(context),
      maps_(maps),
      words_(static_cast<Word*>(maps.map(kWordBytes))),
      words_address_(device_address(context, words_)) {
    static_assert(kGates <= 1U << kIndexBits);
    const CurrentContext current = context_.use();
    for (Gate& gate : gates_) {
        context_.driver.event_create(&gate.passed, kEventDisableTiming);
    }
}

GatePool::~GatePool() {
    for (std::size_t index = 0; index < kGates; ++index) {
        store(index, 1);
    }
    try {
        const CurrentContext current = context_.use();
        for (const Gate& gate : gates_) {
            context_.driver.event_synchronize(gate.passed);
            context_.driver.event_destroy(gate.passed);
        }
        maps_.unmap(words_, kWordBytes);
    } catch (const DeviceError&) {  // a wait may still read the words: they stay
    }
}

GateHandle GatePool::close(Stream stream) {
    const CurrentContext current = context_.use();
    const std::size_t index = reserve();
    Gate& gate = gates_[index];
    try {
        context_.driver.stream_wait_value(stream, words_address_ + index * sizeof(Word), 1, kWaitUntilAtLeast);
        context_.driver.event_record(gate.passed, stream);
    } catch (...) {
        store(index, 1);  // it stays reserved, because nothing would tell when it is free again
        throw;
    }
    return {std::uintptr_t{gate.uses} << kIndexBits | index};
}

void GatePool::open(GateHandle handle) {
    const std::size_t index = handle.value & ((1U << kIndexBits) - 1);
    auto use = static_cast<std::uint32_t>(handle.value >> kIndexBits);
    if (index >= kGates || use == 0 || !gates_[index].closed_by.compare_exchange_strong(use, 0)) {
        throw DeviceError("open_gate(" + in_hex(handle.value) + "): it is not closed; usual cause: opened twice");
    }
    store(index, 1);
}

// Reserves a gate whose last wait has passed. Nothing is enqueued for the new use yet; the caller does that without the
// lock.
std::size_t GatePool::reserve() {
    const std::lock_guard lock(mutex_);
    for (std::size_t index = 0; index < kGates; ++index) {
        Gate& gate = gates_[index];
        if (gate.closed_by != 0) {
            continue;
        }
        const Result passed = context_.driver.event_query.result(gate.passed);
        if (passed == kSuccess) {
            store(index, 0);
            gate.closed_by = ++gate.uses;
            return index;
        }
        if (passed != kErrorNotReady) {
            context_.driver.event_query.fail(passed, gate.passed);
        }
    }
    throw DeviceError("close_gate: all " + std::to_string(kGates) +
                      " gates are closed, or opened and not yet passed by their streams; open one and synchronize");
}

void GatePool::store(std::size_t index, std::uint32_t value) {
    std::atomic_ref(words_[index].value).store(value, std::memory_order_release);
}

}  // namespace kvfix::cuda
