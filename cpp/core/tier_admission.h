// Decides which blocks are worth a slot of a full tier, and which of those that could go is worth the least.
//
// Blocks are told apart by what is known of them when a request asks for them: whether one had asked before, and how
// much of the request's prompt was known. A conversation that goes on comes back more often than one that begins. How
// long blocks of each kind wait until they are asked for again is measured on a sample (`ReuseAges`), and the block that
// goes is the one whose slot brings least from now on.
//
// Whether a new block may push another out at all is tried: three shadow tiers, as large as the sample's share of the
// tier, take every block, only blocks that were asked for before, or only those worth more than the one that would go.
// Whichever would have found more decides. See docs/offload.md, "What is stored".
//
// The answers depend on the calls alone. This class knows no slots and has no lock; the caller holds the index's lock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/recent_keys.h"
#include "core/reuse_ages.h"
#include "core/shadow_tier.h"

namespace kvfix {

enum class TierPolicy : std::uint8_t { all, adaptive };

class TierAdmission {
  public:
    TierAdmission(TierPolicy policy, std::uint32_t slots);

    // How much of a prompt is known, of which so many leading blocks are.
    enum class Warmth : std::uint8_t { cold, partly, mostly };
    static Warmth warmth(std::uint32_t known, std::uint32_t blocks);
    static BlockKind kind(bool before, Warmth warmth) {
        return static_cast<BlockKind>((before ? 3 : 0) + static_cast<int>(warmth));
    }

    bool is_adaptive() const { return policy_ == TierPolicy::adaptive; }
    // Whether the block had been asked for, among the keys asked for last: 8/3 to 16/3 times as many as there are slots.
    bool knows(std::uint64_t key) const { return history_.contains(key); }
    void prefetch(std::uint64_t key) const { history_.prefetch(key); }
    // A request asks for the block with this key at this position of a prefix. `before`: it knows it, or a caller with a
    // longer memory does. `elsewhere`: the request has the block without this tier.
    void asked(std::uint64_t key, std::uint32_t position, bool before, Warmth warmth, bool elsewhere);

    std::uint64_t now() const { return asked_; }
    Going going(BlockKind kind, std::uint64_t since) const { return ages_.going(kind, since, asked_); }
    // Whether a block that is asked for now may push out one of that kind, which was asked for last at that time.
    bool takes(bool before, Warmth warmth, BlockKind victim, std::uint64_t since) const {
        return takes_by(rule_, before, warmth, victim, since);
    }

  private:
    // A sequence's blocks share their fate, so it is enough to look at every eighth.
    static constexpr std::uint32_t kSampledPositions = 8;
    static constexpr std::uint32_t kRoundMin = 256;  // in sampled blocks: fewer would say nothing

    enum Rule : std::uint8_t { everything, known, worthier };
    static constexpr std::size_t kRules = 3;

    bool takes_by(Rule rule, bool before, Warmth warmth, BlockKind victim, std::uint64_t since) const;
    void end_round();

    const TierPolicy policy_;
    const std::uint32_t round_;  // sampled blocks between two decisions
    RecentKeys history_;
    ReuseAges ages_;
    ShadowTiers<kRules> shadows_;
    std::uint64_t asked_ = 0;
    std::uint32_t sampled_ = 0;
    Rule rule_ = everything;
};

}  // namespace kvfix
