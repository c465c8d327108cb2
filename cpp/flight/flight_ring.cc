#include "flight/flight_ring.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

namespace kvfix {
namespace {

// Writes values one after the other.
class SlotWriter {
  public:
    explicit SlotWriter(std::byte* at) : at_(at) {}

    template <class Value>
    void put(const Value& value) {
        std::memcpy(at_, &value, sizeof value);
        at_ += sizeof value;
    }

  private:
    std::byte* at_;
};

FlightRing* of_process = nullptr;

std::int64_t now_ns() { return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

FlightRing::FlightRing(std::span<std::byte> slots) : slots_(slots) {
    if (slots.empty() || slots.size() % kSlotBytes != 0) {
        throw std::invalid_argument("a ring of " + std::to_string(slots.size()) + " bytes; its slots take " +
                                    std::to_string(kSlotBytes) + " each");
    }
}

FlightRing::~FlightRing() {
    if (of_process == this) {
        of_process = nullptr;
    }
}

void FlightRing::serve_process() { of_process = this; }

void FlightRing::note_in_process(FlightKind kind, const std::array<std::int64_t, kValues>& values) {
    if (of_process != nullptr) {
        of_process->note(static_cast<std::uint16_t>(kind), values, {});
    }
}

void FlightRing::note(std::uint16_t kind, const std::array<std::int64_t, kValues>& values, std::string_view text) {
    std::array<char, kTextBytes> cut{};
    std::copy_n(text.begin(), std::min(text.size(), cut.size()), cut.begin());
    const auto thread = static_cast<std::uint64_t>(::syscall(SYS_gettid));
    const std::lock_guard guard(mutex_);
    const std::uint64_t number = ++number_;
    SlotWriter slot(slots_.subspan(number % (slots_.size() / kSlotBytes) * kSlotBytes, kSlotBytes).data());
    slot.put(number);
    slot.put(now_ns());
    slot.put(thread);
    slot.put(kind);
    slot.put(values);
    slot.put(cut);
}

void FlightRing::move_to(std::span<std::byte> slots) {
    const std::lock_guard guard(mutex_);
    if (slots.size() != slots_.size()) {
        throw std::invalid_argument("a ring of " + std::to_string(slots_.size()) + " bytes cannot go on in " +
                                    std::to_string(slots.size()));
    }
    std::copy(slots_.begin(), slots_.end(), slots.begin());
    slots_ = slots;
}

std::uint64_t FlightRing::noted() const {
    const std::lock_guard guard(mutex_);
    return number_;
}

}  // namespace kvfix
