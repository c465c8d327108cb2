// The reuse tree as a router knows it: from events alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "fuzz/world/port.h"
#include "fuzz/world/prompts.h"

namespace kvfix::world {

class Mirror {
  public:
    explicit Mirror(const BlockManagerConfig& config);

    // Whether the mirror sees every event and no two blocks share a hash. If not, nothing can be concluded from it.
    bool complete() const { return complete_; }
    void read(const std::vector<BlockEvent>& events, std::uint64_t dropped);

    // Whether the mirror has everything in that window that a token behind this many whole blocks of the prompt looks
    // back to.
    bool allows(std::size_t window, const std::vector<BlockHash>& hashes, std::size_t blocks) const;
    // The longest common beginning of the tokens and a whole block below that parent.
    std::uint32_t longest_beginning(std::size_t window, std::optional<BlockHash> parent,
                                    std::span<const TokenId> tokens) const;
    std::optional<Tier> tier_of(std::size_t window, const BlockHash& hash) const;
    std::size_t size() const;

  private:
    struct Node {
        std::optional<BlockHash> parent;
        std::vector<TokenId> tokens;
        Tier tier;
    };
    using Tree = std::map<BlockHash, Node>;

    void apply(const BlockEvent& event);
    void expect_rooted() const;

    bool complete_;
    std::uint32_t tokens_per_block_;
    std::vector<WindowSize> sizes_;
    std::vector<Tree> trees_;  // by window
    std::uint64_t next_event_ = 0;
};

}  // namespace kvfix::world
