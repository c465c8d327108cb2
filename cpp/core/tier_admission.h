// Which blocks are worth a slot of a full tier. A block that no request has asked for before mostly never comes back, and pushes
// out what would; but where reuse comes soon or the tier is large, waiting for the second time misses the first reuse of
// everything. So both are tried on a sample: two shadows, sets of keys as large as the sample's part of the tier. One takes every
// block, the other those asked for before; whichever would have found more decides. docs/offload.md, "What is stored".
//
// The answers depend on the calls alone. Knows no slots and has no lock: the index's is held around every call.
#pragma once

#include <cstdint>

#include "core/recent_keys.h"

namespace kvfix {

enum class TierPolicy : std::uint8_t { all, adaptive };

class TierAdmission {
  public:
    TierAdmission(TierPolicy policy, std::uint32_t slots);

    // Somebody asks for the block with this key at this position of a prefix. `elsewhere`: and has it without this tier. Whether
    // it had been asked for before, as far as is remembered: the last asked, 8/3 to 16/3 as many as there are slots. `reused`: it
    // had, of somebody who remembers more.
    bool asked(std::uint64_t key, std::uint32_t position, bool elsewhere, bool reused);

    // Whether blocks that had not been asked for before push others out.
    bool takes_new() const { return !only_known_; }

  private:
    // A sequence's blocks share their fate, so every so many of them are enough.
    static constexpr std::uint32_t kSampledPositions = 8;
    static constexpr std::uint32_t kRoundMin = 64;  // sampled blocks: fewer would say nothing

    void end_round();

    const TierPolicy policy_;
    const std::uint32_t round_;  // sampled blocks between two decisions
    RecentKeys history_;
    RecentKeys shadow_of_all_;
    RecentKeys shadow_of_known_;
    double found_in_all_ = 0;
    double found_in_known_ = 0;
    std::uint32_t sampled_ = 0;
    bool only_known_ = false;
};

}  // namespace kvfix
