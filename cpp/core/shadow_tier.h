// The keys that tiers would have if they took blocks by some rule each, and how often they would be found there. They
// make room as the tier does (`TierBlocks`), but know no prefixes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "core/reuse_ages.h"

namespace kvfix {

// One tier for each rule, of so many slots. All are asked about the same blocks, so they share a table.
template <std::size_t Rules>
class ShadowTiers {
  public:
    explicit ShadowTiers(std::uint32_t slots) : slots_(slots == 0 ? 1 : slots) { blocks_.reserve(Rules * slots_); }

    // A request asks for a block. A tier that lacks it and is full asks `takes(rule, kind, asked at)` of the one that
    // would go.
    template <class Takes>
    void asked(std::uint64_t key, BlockKind kind, bool elsewhere, std::uint64_t now, const ReuseAges& ages,
               Takes&& takes);

    std::uint64_t found(std::size_t rule) const { return tiers_[rule].found; }
    void fade() {
        for (Tier& tier : tiers_) {
            tier.found -= tier.found / 4;
        }
    }

  private:
    static constexpr std::uint64_t kOne = 256;  // a block, in a count that fades

    struct Block;
    struct Held {
        BlockKind kind = kBlockKinds;  // not held
        std::uint64_t asked_at = 0;
        Block* before = nullptr;
        Block* behind = nullptr;
    };
    struct Block {
        std::uint64_t key = 0;
        std::array<Held, Rules> held;
        std::uint32_t tiers = 0;  // that hold it
    };
    struct Order {
        Block* first = nullptr;  // asked for the longest ago
        Block* last = nullptr;
    };
    struct Tier {
        std::array<Order, kBlockKinds> orders;
        std::uint32_t blocks = 0;
        std::uint64_t found = 0;
    };

    Block* worst(std::size_t rule, std::uint64_t now, const ReuseAges& ages) const;
    void enter(std::size_t rule, Block& block, BlockKind kind, std::uint64_t now);
    void leave(std::size_t rule, Block& block);

    std::uint32_t slots_;
    std::array<Tier, Rules> tiers_;
    std::unordered_map<std::uint64_t, Block> blocks_;  // its elements stay where they are
};

template <std::size_t Rules>
template <class Takes>
void ShadowTiers<Rules>::asked(std::uint64_t key, BlockKind kind, bool elsewhere, std::uint64_t now,
                               const ReuseAges& ages, Takes&& takes) {
    auto here = blocks_.find(key);
    for (std::size_t rule = 0; rule < Rules; ++rule) {
        Tier& tier = tiers_[rule];
        if (here != blocks_.end() && here->second.held[rule].kind != kBlockKinds) {
            tier.found += elsewhere ? 0 : kOne;
            leave(rule, here->second);
            enter(rule, here->second, kind, now);
            continue;
        }
        if (elsewhere) {
            continue;
        }
        if (tier.blocks == slots_) {
            Block* going = worst(rule, now, ages);
            if (!takes(rule, going->held[rule].kind, going->held[rule].asked_at)) {
                continue;
            }
            leave(rule, *going);
            if (going->tiers == 0) {
                blocks_.erase(going->key);
            }
        }
        if (here == blocks_.end()) {
            here = blocks_.try_emplace(key).first;
            here->second.key = key;
        }
        enter(rule, here->second, kind, now);
    }
}

template <std::size_t Rules>
auto ShadowTiers<Rules>::worst(std::size_t rule, std::uint64_t now, const ReuseAges& ages) const -> Block* {
    Block* out = nullptr;
    Going of_out{};
    for (BlockKind kind = 0; kind < kBlockKinds; ++kind) {
        Block* const first = tiers_[rule].orders[kind].first;
        if (first == nullptr) {
            continue;
        }
        if (const Going going = ages.going(kind, first->held[rule].asked_at, now); out == nullptr || going < of_out) {
            out = first;
            of_out = going;
        }
    }
    return out;
}

template <std::size_t Rules>
void ShadowTiers<Rules>::enter(std::size_t rule, Block& block, BlockKind kind, std::uint64_t now) {
    Order& order = tiers_[rule].orders[kind];
    block.held[rule] = {.kind = kind, .asked_at = now, .before = order.last};
    (order.last == nullptr ? order.first : order.last->held[rule].behind) = &block;
    order.last = &block;
    ++block.tiers;
    ++tiers_[rule].blocks;
}

template <std::size_t Rules>
void ShadowTiers<Rules>::leave(std::size_t rule, Block& block) {
    const Held held = block.held[rule];
    Order& order = tiers_[rule].orders[held.kind];
    (held.before == nullptr ? order.first : held.before->held[rule].behind) = held.behind;
    (held.behind == nullptr ? order.last : held.behind->held[rule].before) = held.before;
    block.held[rule] = {};
    --block.tiers;
    --tiers_[rule].blocks;
}

}  // namespace kvfix
