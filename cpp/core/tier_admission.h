// Decides which blocks are worth a slot of a full tier. A block that no request has asked for before seldom comes back,
// and pushes out blocks that would. But if reuse comes soon or the tier is large, waiting for the second request misses
// the first reuse of everything. So both policies are tried on a sample, with two shadows: sets of keys as large as the
// sample's share of the tier. One takes every block, the other only those asked for before. Whichever would have found
// more decides. See docs/offload.md, "What is stored".
//
// The answers depend on the calls alone. This class knows no slots and has no lock; the caller holds the index's lock.
#pragma once

#include <cstdint>

#include "core/recent_keys.h"

namespace kvfix {

enum class TierPolicy : std::uint8_t { all, adaptive };

class TierAdmission {
  public:
    TierAdmission(TierPolicy policy, std::uint32_t slots);

    // A request asks for the block with this key at this position of a prefix. `elsewhere`: it has the block without
    // this tier. `reused`: a caller with a longer memory knows that the block was asked for before. Returns whether it
    // had been, among the keys asked for last: 8/3 to 16/3 times as many as there are slots.
    bool asked(std::uint64_t key, std::uint32_t position, bool elsewhere, bool reused);

    // Whether blocks that were not asked for before may push others out.
    bool takes_new() const { return !only_known_; }

  private:
    // A sequence's blocks share their fate, so it is enough to look at every eighth.
    static constexpr std::uint32_t kSampledPositions = 8;
    static constexpr std::uint32_t kRoundMin = 64;  // in sampled blocks: fewer would say nothing

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
