// The identity that distinguishes prompts with equal tokens: the LoRA adapter and the salt, serialised
// (serialise_identity in request.h). A tenant may choose a long salt, so a manager hashes it once for a request,
// however many windows and calls need it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "core/block_hash.h"
#include "core/siphash.h"

namespace kvfix {

class Identity {
  public:
    struct Hashes {
        BlockHash root;         // BlockHasher::root()
        std::uint64_t key = 0;  // IndexHash::root()
    };

    explicit(false) Identity(std::string text) : text_(std::move(text)) {}  // NOLINT(misc-explicit-constructor)
    Identity(const Identity&) = delete;
    Identity& operator=(const Identity&) = delete;
    ~Identity() = default;

    const std::string& text() const { return text_; }

    // Returns what `make(text)` makes of the text under the given key, and remembers it for the first key that asks. A
    // request that managers with different seeds see, perhaps at the same time, is hashed again for the others.
    template <class Make>
    Hashes hashes(const Secret& key, Make&& make) const {
        if (state_.load(std::memory_order_acquire) == State::known && key_ == key) [[likely]] {
            return hashes_;
        }
        const Hashes made = make(text_);
        State before = State::unknown;
        if (state_.compare_exchange_strong(before, State::being_written, std::memory_order_relaxed)) {
            key_ = key;
            hashes_ = made;
            state_.store(State::known, std::memory_order_release);
        }
        return made;
    }

  private:
    enum class State : std::uint8_t { unknown, being_written, known };

    const std::string text_;
    mutable std::atomic<State> state_{State::unknown};  // says whether the two below may be read
    mutable Secret key_;
    mutable Hashes hashes_;
};

}  // namespace kvfix
