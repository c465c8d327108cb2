// The reuse tree as a router would know it: from events alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "fuzz/world/port.h"
#include "fuzz/world/prompts.h"

namespace kvfix::world {

class Mirror {
  public:
    explicit Mirror(const BlockManagerConfig& config);

    // Whether it sees every event and every hash is one block's: else nothing can be concluded from it.
    bool complete() const { return complete_; }
    void read(const std::vector<BlockEvent>& events, std::uint64_t dropped);

    // Leading whole blocks of the prompt in that window.
    std::uint32_t whole_blocks(std::size_t window, const std::vector<std::uint64_t>& hashes) const;
    // The longest common beginning of the tokens with a whole block below that one.
    std::uint32_t longest_beginning(std::size_t window, std::optional<std::uint64_t> parent,
                                    std::span<const TokenId> tokens) const;
    std::optional<Tier> tier_of(std::size_t window, std::uint64_t hash) const;
    std::size_t size() const;
    std::optional<std::uint64_t> any(Random& random) const;

    // What a block of that hash holds, as far as some prompt has shown it.
    void learn(const std::vector<std::uint64_t>& hashes, const std::vector<std::uint64_t>& contents,
               std::uint32_t tokens_per_block);
    const std::vector<std::uint64_t>* contents(std::uint64_t hash) const;

  private:
    struct Node {
        std::optional<std::uint64_t> parent;
        std::vector<TokenId> tokens;
        Tier tier;
    };
    using Tree = std::map<std::uint64_t, Node>;

    void apply(const BlockEvent& event);
    void expect_rooted() const;

    bool complete_;
    std::uint32_t tokens_per_block_;
    std::vector<WindowSize> sizes_;
    std::vector<Tree> trees_;  // by window
    std::uint64_t next_event_ = 0;
    std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> contents_;
};

}  // namespace kvfix::world
