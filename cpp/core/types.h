// Words that every file of the core shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

namespace kvfix {

using TokenId = std::int32_t;
using RequestId = std::uint64_t;
// A block's index in its window's store. Public block ids add the window's base, so they are unique per manager.
using BlockIndex = std::uint32_t;
using SlotIndex = std::uint32_t;
using BlockId = std::uint64_t;
using Ticket = std::uint64_t;
// Unset for full attention.
using WindowSize = std::optional<std::uint32_t>;

inline constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

enum class Tier : std::uint8_t { primary = 0, host = 1 };
inline constexpr std::size_t kTiers = 2;
inline constexpr std::size_t kPrimary = static_cast<std::size_t>(Tier::primary);
inline constexpr std::size_t kHost = static_cast<std::size_t>(Tier::host);

using Priority = std::uint8_t;
inline constexpr Priority kPriorityMax = 100;
inline constexpr Priority kPriorityDefault = 35;

constexpr std::uint32_t ceil_div(std::uint32_t value, std::uint32_t unit) { return value / unit + (value % unit != 0); }

}  // namespace kvfix
