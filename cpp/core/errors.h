// Operating errors. The caller can handle each of them, and a call that throws one has changed nothing. A bad argument
// is std::invalid_argument.
#pragma once

#include <stdexcept>
#include <string>

#include "core/types.h"

namespace kvfix {

class OutOfBlocks : public std::runtime_error {
  public:
    OutOfBlocks(std::uint64_t needed, std::uint64_t free, WindowSize window, Tier in_tier = Tier::primary)
        : std::runtime_error("out of blocks" + (window ? " in window " + std::to_string(*window) : "") + ": " +
                             std::to_string(needed) + (in_tier == Tier::primary ? " primary" : " host") +
                             " blocks needed, " + std::to_string(free) +
                             " free or evictable; the rest is owned, pinned or in flight"),
          blocks_needed(needed),
          blocks_free(free),
          window_size(window),
          tier(in_tier) {}

    std::uint64_t blocks_needed;
    std::uint64_t blocks_free;
    WindowSize window_size;
    Tier tier;
};

class UnknownRequest : public std::runtime_error {
  public:
    explicit UnknownRequest(RequestId id)
        : std::runtime_error("request " + std::to_string(id) +
                             " has no sequence here: never added, or already removed") {}
};

class BlockInFlight : public std::runtime_error {
  public:
    explicit BlockInFlight(BlockId block_id)
        : std::runtime_error("block " + std::to_string(number(block_id)) +
                             " is the destination of a transfer that has not completed; pin it after complete()") {}
};

}  // namespace kvfix
