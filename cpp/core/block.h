// One block: a record with a stable index, a slot in one tier or in both, and perhaps a place in the reuse tree.
// docs/block-manager.md section 1 defines the words. check_invariants() verifies the combinations.
#pragma once

#include <array>
#include <cstdint>

#include "core/types.h"

namespace kvfix {

// The parent of a tree block: another block, or a root of the tree. A private block has none.
class ParentRef {
  public:
    // NOLINTBEGIN(misc-explicit-constructor): implicit, because a block is a parent and kNone is none
    constexpr explicit(false) ParentRef(None = kNone) {}
    constexpr explicit(false) ParentRef(BlockIndex block) : bits_(number(block)) {}
    // NOLINTEND(misc-explicit-constructor)
    static constexpr ParentRef root(std::uint32_t index) { return ParentRef(BlockIndex{kRootBit | index}); }

    constexpr bool is_root() const { return (bits_ & kRootBit) != 0; }
    constexpr std::uint32_t root_index() const { return bits_ & ~kRootBit; }
    constexpr BlockIndex block() const { return BlockIndex{bits_}; }
    constexpr std::uint32_t bits() const { return bits_; }
    constexpr bool operator==(const ParentRef&) const = default;

  private:
    static constexpr std::uint32_t kRootBit = 1U << 31;
    std::uint32_t bits_ = kNone;
};

// One cache line. Walking a long prefix touches one of these for each block, so rarely needed data lives elsewhere.
struct alignas(64) Block {
    std::uint64_t key = 0;  // key of the whole prefix in the tree's index (index_hash.h); full blocks only
    ParentRef parent;
    BlockIndex children = kNone;    // top of the ordered index of its children
    BlockIndex child_left = kNone;  // the block's own links in its parent's index
    BlockIndex child_right = kNone;
    std::array<SlotIndex, kTiers> slot{kNone, kNone};
    std::array<std::uint32_t, kTiers> pins{0, 0};
    std::array<std::uint32_t, kTiers> locks{0, 0};  // transfers that still read this slot
    std::uint32_t owners = 0;                       // live sequences that hold the block
    std::uint32_t children_primary = 0;             // children with a primary slot
    std::uint32_t generation = 0;  // counts departures from the tree; distinguishes a stale index from a live one
    std::uint16_t num_tokens = 0;  // how many the content has
    Priority priority : 7 = kPriorityDefault;
    bool asked_again : 1 = false;  // by a second request, as far as is remembered; it means nothing to `all`
    std::uint8_t flights : 2 = 0;  // one bit for each tier: the slot is the destination of a transfer not yet completed
    bool in_tree : 1 = false;
    bool undelivered : 1 = false;  // its transfer failed while sequences owned it
    bool has_extras : 1 = false;
    bool has_duration : 1 = false;
    bool changed : 1 = false;  // since the digest last looked at it
    bool outside : 1 = false;  // its last holder let it go because it had left the holder's window

    bool in_flight(std::size_t tier) const { return (flights >> tier & 1U) != 0; }
    void begin_flight(std::size_t tier) { flights = (flights | 1U << tier) & 3U; }
    void end_flight(std::size_t tier) { flights = flights & ~(1U << tier) & 3U; }
    bool has(std::size_t tier) const { return slot[tier] != kNone; }
    bool settled(std::size_t tier) const { return has(tier) && !in_flight(tier); }
    bool host_only() const { return !has(kPrimary) && has(kHost); }
    // Admission may build on the block: its bytes are present in the tier that will be read.
    bool usable() const { return has(kPrimary) ? !in_flight(kPrimary) : settled(kHost); }
    bool held_primary() const {
        return owners != 0 || pins[kPrimary] != 0 || locks[kPrimary] != 0 || in_flight(kPrimary);
    }
    // A block that was claimed while only in host must stay there until it is copied to primary.
    bool held_host() const {
        return pins[kHost] != 0 || locks[kHost] != 0 || in_flight(kHost) || (owners != 0 && !has(kPrimary));
    }
};
static_assert(sizeof(Block) == 64, "a block no longer fits one cache line: memory and cold lookups double");

}  // namespace kvfix
