// Looks at blocks: those that wait because something has happened to a block, those that are on their way, and what
// they find. The first one of a fill is kept, and each other one is compared with it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "canary/fills.h"
#include "canary/rounds.h"

namespace kvfix::canary {

enum class Occasion : std::uint8_t { filled, reused, returned, freed, live };
inline constexpr std::array kOccasions = {"filled", "reused", "returned", "freed", "live"};

struct LookLimits {
    std::size_t due;      // looks that wait for a step with room
    std::size_t of_step;  // at blocks to which something has happened
    std::size_t live;     // at others, of a step
};

struct Look {
    Slot slot;
    FillUse fill;
    Occasion occasion;
    Requester reader = std::nullopt;  // the request that reuses it
};

// A complete block that is not what was filled. It is said once, until it is right again.
struct Changed {
    Slot slot;
    std::vector<std::uint32_t> layers;  // that differ
    Occasion occasion;
    Requester filler;
    Requester reader;
    std::uint64_t right_at;  // behind this step it was still what was filled
    std::uint64_t wrong_at;  // behind this one it was not
};

class Looks {
  public:
    Looks(Fills& fills, const FilledSlots& primary, LookLimits limits, std::uint64_t seed)
        : fills_(&fills), primary_(&primary), limits_(limits), rounds_(seed) {}

    // One for which no place is left is missed.
    void add(Slot slot, FillIndex fill, Occasion occasion, Requester reader = std::nullopt) {
        wait(Look{slot, FillUse(*fills_, fill), occasion, reader});
    }
    // A step has been enqueued. Returns the slots whose digests are wanted behind it, at most `free`.
    std::vector<Slot> begin_step(std::uint64_t step, std::size_t free);
    // Looks that must be first, and alone. The rest of them waits.
    std::vector<Slot> send_now(std::vector<Look> looks, std::size_t free);
    // The digests of what was sent longest ago.
    void arrived(std::span<const std::uint64_t> digests, std::vector<Changed>& changed);

    std::uint64_t taken() const { return taken_; }
    std::uint64_t missed() const { return missed_; }
    const std::array<std::uint64_t, kOccasions.size()>& compared() const { return compared_; }

  private:
    struct Sent {
        std::vector<Look> looks;
        std::uint64_t step;
    };

    void wait(Look look);
    bool is_there(const Look& look) const { return primary_->at(look.slot) == look.fill.index(); }
    std::vector<Slot> send(std::vector<Look> looks);
    void compare(const Look& look, std::span<const std::uint64_t> digests, std::uint64_t step,
                 std::vector<Changed>& changed);

    Fills* fills_;
    const FilledSlots* primary_;
    LookLimits limits_;
    Rounds rounds_;  // over blocks whose digests are known
    std::uint64_t step_ = 0;
    std::size_t left_ = 0;  // looks at blocks to which something has happened, in this step
    std::deque<Look> due_;
    std::deque<Sent> on_way_;
    std::uint64_t taken_ = 0;   // blocks whose first digest was
    std::uint64_t missed_ = 0;  // looks that came too late or never
    std::array<std::uint64_t, kOccasions.size()> compared_{};
};

}  // namespace kvfix::canary
