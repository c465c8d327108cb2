// Folds state into 64 bits. Equal state gives equal digests in every process; that is all it promises.
#pragma once

#include <cstdint>

#include "core/state.h"

namespace kvfix {

class Digest {
  public:
    void mix(std::uint64_t value) {
        state_ ^= value + 0x9e3779b97f4a7c15 + (state_ << 12) + (state_ >> 4);
        state_ *= 0xff51afd7ed558ccd;
        state_ ^= state_ >> 32;
    }
    std::uint64_t value() const { return state_; }

  private:
    std::uint64_t state_ = 0x243f6a8885a308d3;
};

// Everything that a later call can show.
std::uint64_t digest_of(const State& state);

}  // namespace kvfix
