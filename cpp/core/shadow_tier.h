// The keys that a tier would have if it took blocks by some rule, and how often they would be found there. It makes room
// as the tier does (`TierBlocks`), but knows no prefixes.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <unordered_map>

#include "core/reuse_ages.h"

namespace kvfix {

class ShadowTier {
  public:
    explicit ShadowTier(std::uint32_t slots) : slots_(slots == 0 ? 1 : slots) {}

    // A request asks for a block. If the tier lacks it and is full, `takes(kind, asked at)` of the one that would go
    // decides.
    template <class Takes>
    void asked(std::uint64_t key, BlockKind kind, bool elsewhere, std::uint64_t now, const ReuseAges& ages,
               Takes&& takes);

    std::uint64_t found() const { return found_; }
    void fade() { found_ -= found_ / 4; }

  private:
    static constexpr std::uint64_t kOne = 256;  // a block, in a count that fades

    struct Held {
        std::uint64_t key;
        std::uint64_t asked_at;
    };
    using Order = std::list<Held>;  // the one that was asked for the longest ago first
    struct Place {
        BlockKind kind;
        Order::iterator at;
    };

    BlockKind worst(std::uint64_t now, const ReuseAges& ages) const {
        BlockKind out = kBlockKinds;
        for (BlockKind kind = 0; kind < kBlockKinds; ++kind) {
            if (!orders_[kind].empty() && (out == kBlockKinds || goes_before(kind, out, now, ages))) {
                out = kind;
            }
        }
        return out;
    }
    bool goes_before(BlockKind one, BlockKind other, std::uint64_t now, const ReuseAges& ages) const {
        const std::uint64_t since = orders_[one].front().asked_at;
        const std::uint64_t other_since = orders_[other].front().asked_at;
        const std::uint64_t worth = ages.least_worth(one, now - since);
        const std::uint64_t other_worth = ages.least_worth(other, now - other_since);
        return worth != other_worth ? worth < other_worth : since < other_since;
    }

    std::uint32_t slots_;
    std::array<Order, kBlockKinds> orders_;
    std::unordered_map<std::uint64_t, Place> places_;
    std::uint64_t found_ = 0;
};

template <class Takes>
void ShadowTier::asked(std::uint64_t key, BlockKind kind, bool elsewhere, std::uint64_t now, const ReuseAges& ages,
                       Takes&& takes) {
    if (const auto here = places_.find(key); here != places_.end()) {
        found_ += elsewhere ? 0 : kOne;
        Order& to = orders_[kind];
        to.splice(to.end(), orders_[here->second.kind], here->second.at);
        here->second = {kind, std::prev(to.end())};
        to.back().asked_at = now;
        return;
    }
    if (elsewhere) {
        return;
    }
    if (places_.size() == slots_) {
        const BlockKind going = worst(now, ages);
        const Held& victim = orders_[going].front();
        if (!takes(going, victim.asked_at)) {
            return;
        }
        places_.erase(victim.key);
        orders_[going].pop_front();
    }
    orders_[kind].push_back({key, now});
    places_[key] = {kind, std::prev(orders_[kind].end())};
}

}  // namespace kvfix
