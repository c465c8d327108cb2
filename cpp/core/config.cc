#include "core/config.h"

#include <algorithm>
#include <random>
#include <stdexcept>
#include <string>

namespace kvfix {
namespace {

// Block indices, and twice their number, must fit the 32-bit links of a block.
constexpr std::uint64_t kBlocksMax = 1U << 30;
constexpr std::uint32_t kTokensPerBlockMax = 32768;  // a block counts its tokens in 16 bits

void require(bool ok, const char* field, std::uint64_t value, const std::string& rule) {
    if (!ok) {
        throw std::invalid_argument(std::string(field) + " is " + std::to_string(value) + ": " + rule);
    }
}

void check_window(const WindowConfig& window, std::uint32_t tokens_per_block, std::uint32_t beam_width_max) {
    const std::uint64_t blocks = std::uint64_t{window.blocks_primary} + window.blocks_host;
    require(window.blocks_primary > 0, "blocks_primary", window.blocks_primary,
            "a window needs at least one primary block");
    require(blocks <= kBlocksMax, "blocks_primary + blocks_host", blocks, "the limit is " + std::to_string(kBlocksMax));
    require(beam_width_max <= window.blocks_primary, "max_beam_width", beam_width_max,
            "each beam ends in a block of its own, and a window has " + std::to_string(window.blocks_primary) +
                " primary blocks");
    if (window.window_size) {
        require(*window.window_size >= tokens_per_block, "window_sizes", *window.window_size,
                "a window holds at least one block of " + std::to_string(tokens_per_block) + " tokens");
    }
}

}  // namespace

Secret drawn_seed() {
    std::random_device entropy;
    const auto word = [&] { return std::uint64_t{entropy()} << 32 | entropy(); };
    return {word(), word()};
}

void check_config(const BlockManagerConfig& config) {
    require(config.tokens_per_block > 0, "tokens_per_block", 0, "at least 1");
    require(config.tokens_per_block <= kTokensPerBlockMax, "tokens_per_block", config.tokens_per_block,
            "at most " + std::to_string(kTokensPerBlockMax));
    require(config.beam_width_max > 0, "max_beam_width", 0, "at least 1");
    require(config.offload_priority_min <= kPriorityMax, "offload_priority_min", config.offload_priority_min,
            "at most 100");
    require(config.hash_bits >= 1 && config.hash_bits <= kBlockHashBits, "hash_bits", config.hash_bits,
            "1 to " + std::to_string(kBlockHashBits));
    require(!config.windows.empty(), "window_sizes", 0, "at least one window, or None for full attention");
    const bool has_host =
        std::ranges::any_of(config.windows, [](const WindowConfig& each) { return each.blocks_host != 0; });
    if (config.host_admission != HostAdmission::all && !has_host) {
        throw std::invalid_argument("host_admission is adaptive: blocks_host is 0, so there is no host tier");
    }
    for (std::size_t i = 0; i < config.windows.size(); ++i) {
        check_window(config.windows[i], config.tokens_per_block, config.beam_width_max);
        if (i > 0) {
            const std::uint32_t before = config.windows[i - 1].window_size.value_or(kNone);
            const std::uint32_t size = config.windows[i].window_size.value_or(0);
            require(before < size, "window_sizes", size,
                    "sizes must ascend; the one before is " + std::to_string(before));
        }
    }
}

}  // namespace kvfix
