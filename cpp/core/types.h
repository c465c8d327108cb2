// Types that every file of the core shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

namespace kvfix {

using TokenId = std::int32_t;
using RequestId = std::uint64_t;
using Ticket = std::uint64_t;
// Unset for full attention.
using WindowSize = std::optional<std::uint32_t>;

// Distinct types, so that none of them can be taken for another or for a count.
// A block's index in its window's store.
enum class BlockIndex : std::uint32_t {};
// A slot of one window in one tier.
enum class SlotIndex : std::uint32_t {};
// A block as callers know it: the index and its window's base, so it is unique per manager.
enum class BlockId : std::uint64_t {};

constexpr std::uint32_t number(BlockIndex block) { return static_cast<std::uint32_t>(block); }
constexpr std::uint32_t number(SlotIndex slot) { return static_cast<std::uint32_t>(slot); }
constexpr std::uint64_t number(BlockId id) { return static_cast<std::uint64_t>(id); }

// No block, no slot, no position: the largest number of each kind.
struct None {
    static constexpr std::uint32_t kValue = std::numeric_limits<std::uint32_t>::max();
    // NOLINTBEGIN(misc-explicit-constructor): implicit, so that kNone reads the same for each kind
    constexpr explicit(false) operator std::uint32_t() const { return kValue; }
    constexpr explicit(false) operator BlockIndex() const { return BlockIndex{kValue}; }
    constexpr explicit(false) operator SlotIndex() const { return SlotIndex{kValue}; }
    // NOLINTEND(misc-explicit-constructor)
};
inline constexpr None kNone;

enum class Tier : std::uint8_t { primary = 0, host = 1 };
inline constexpr std::size_t kTiers = 2;
inline constexpr std::size_t kPrimary = static_cast<std::size_t>(Tier::primary);
inline constexpr std::size_t kHost = static_cast<std::size_t>(Tier::host);

using Priority = std::uint8_t;
inline constexpr Priority kPriorityMax = 100;
inline constexpr Priority kPriorityDefault = 35;

constexpr std::uint32_t ceil_div(std::uint32_t value, std::uint32_t unit) { return value / unit + (value % unit != 0); }

}  // namespace kvfix
