// How long blocks wait until a request asks for them again, by their kind, and what it is worth to keep one. Blocks of a
// kind are alike in what is known of them when a request asks for them (`TierAdmission`).
//
// The worth of a block is the most that its slot can bring from now on, in blocks found for each unit of time: the best
// share, over all times for which it could stay, of the chance that it is asked for to the time that it is expected to
// take (Gittins' index). It may rise while a block waits, for the GPU has what was asked for a moment ago. Time is
// counted in blocks asked for. A block that was asked for while it was elsewhere says only that it had waited until then.
//
// All numbers are whole, so every machine decides alike. The caller holds the lock.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <deque>
#include <unordered_map>

namespace kvfix {

using BlockKind = std::uint8_t;
inline constexpr std::uint32_t kBlockKinds = 6;

// Of the blocks that may go, the least goes first: the one that is worth least, then the one that has waited longest.
struct Going {
    std::uint64_t worth = 0;
    std::uint64_t asked_at = 0;
    auto operator<=>(const Going&) const = default;
};

class ReuseAges {
  public:
    // Every `sampled`th block is told. Nothing grows later at once, as a table does that doubles.
    ReuseAges(std::uint32_t slots, std::uint32_t sampled);

    void asked(std::uint64_t key, BlockKind kind, bool elsewhere, std::uint64_t now);
    // Takes the worth anew from what was seen. What was seen long ago counts for less.
    void learn(std::uint64_t now);

    std::uint64_t worth(BlockKind kind, std::uint64_t age) const { return worth_[kind][bucket(age)]; }
    // By the least that the block has been worth since it was asked for. So of blocks of one kind, the one that has
    // waited for the longest goes first.
    Going going(BlockKind kind, std::uint64_t asked_at, std::uint64_t now) const {
        return {least_worth_[kind][bucket(now - asked_at)], asked_at};
    }

  private:
    static constexpr std::uint32_t kBuckets = 38;  // four for each doubling of the age
    using Counts = std::array<std::array<std::uint64_t, kBuckets>, kBlockKinds>;
    struct Waiting {
        std::uint64_t key;
        std::uint64_t since;
        BlockKind kind;
        bool is_asked_again;      // then a later entry stands for the block
        std::uint8_t bucket = 0;  // in which it is counted
    };

    std::uint32_t bucket(std::uint64_t age) const;
    void forget_old(std::uint64_t now);
    void move_into(std::uint32_t bucket, std::uint64_t now);
    Counts at_risk() const;

    const std::uint64_t unit_;     // of age: a quarter of the first bucket
    std::deque<Waiting> waiting_;  // in the order in which they were asked for
    std::uint64_t forgotten_ = 0;  // entries that have left its front
    // How many blocks have waited so long, counted as time goes by, since a look at all of them at once would hold up
    // whoever asks. For each bucket the number of the first entry that is too young for it; some may be behind.
    Counts waited_{};
    std::array<std::uint64_t, kBuckets> too_young_{};
    std::uint32_t turn_ = 0;
    std::unordered_map<std::uint64_t, std::uint64_t> last_;  // key -> number of its entry
    Counts reused_{};                                        // ages at which blocks were found again
    Counts left_{};                                          // ages up to which blocks were seen, and not found
    Counts worth_{};
    Counts least_worth_{};
};

}  // namespace kvfix
