// Plain values that the books, the requests and the bindings share.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace bound {

using Token = std::int32_t;
using RequestId = std::uint64_t;

struct UniqueToken {
    Token token_id = 0;
    std::uint64_t token_extra_id = 0;
    auto operator<=>(const UniqueToken&) const = default;
};

using Tokens = std::vector<UniqueToken>;

// Identifies the contents of one block; the path to it through the tree identifies what precedes it.
struct BlockKey {
    bool uses_extra_ids = false;
    std::optional<std::uint64_t> lora_task_id;
    Tokens unique_tokens;
    std::optional<std::uint64_t> cache_salt_id;
    std::vector<std::int32_t> images;
    auto operator<=>(const BlockKey&) const = default;
};

enum class CacheType { SELF, CROSS, SELFKONLY };
enum class DataType { FLOAT, HALF, INT8, INT32, BOOL, UINT8, FP8, BF16, INT64, FP4 };

constexpr int kDefaultPriority = 35;
constexpr int kOffloadFromPriority = 30;

// Every failed check of the books arrives in Python as RuntimeError.
inline void check(bool holds, const std::string& message) {
    if (!holds) throw std::runtime_error("[kvfix_bound] " + message);
}

inline int ceil_div(int value, int by) { return (value + by - 1) / by; }

}  // namespace bound
