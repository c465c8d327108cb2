// Predicts which block goes next. This server is so small and so punctual that docs/block-manager.md, section 6, leaves
// nothing open: prompts are whole blocks and one token, and every copy ends within its step. So each block that goes,
// according to the events, can be compared with the one that had to go.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/block_manager.h"
#include "core/newcomers.h"
#include "fuzz/world/random.h"

namespace kvfix::world {

class Evictions {
  public:
    explicit Evictions(std::uint64_t seed);
    void step();
    // The number of blocks that were compared with the ones that had to go.
    std::uint64_t seen() const { return seen_; }

  private:
    using Path = std::vector<TokenId>;  // a block's path from its root: one number for each block
    struct Block {
        Path path;
        Priority priority = kPriorityDefault;
        std::uint32_t owners = 0;
        std::uint32_t pins = 0;  // in primary
        bool in_tree = false;
        bool primary = true;
        bool host = false;
        bool asked_again = false;      // more than one request has asked for it
        bool copying = false;          // between the tiers, until its step ends
        std::uint64_t cached_at = 0;   // when it was last cached in primary
        std::uint64_t host_since = 0;  // when it joined its group of host blocks
        bool cached() const { return in_tree && primary && owners == 0 && pins == 0 && !copying; }
    };
    using BlockPtr = std::shared_ptr<Block>;
    using Priorities = std::vector<std::optional<Priority>>;  // one for each block, as retention wants it
    struct Live {
        Path path;
        std::vector<BlockPtr> blocks;  // whole blocks, and one for the last token
    };
    struct Pinned {
        std::vector<BlockId> ids;
        std::vector<BlockPtr> blocks;
    };
    // Blocks that go together, in any order, or one block whose primary slot goes.
    struct Going {
        bool to_host;
        std::set<Path> blocks;
    };

    void admit();
    // Whether a prompt of so many blocks fits that finds these.
    bool has_room(const std::vector<BlockPtr>& reused, std::size_t blocks) const;
    void take_blocks(Live& live, const std::vector<BlockPtr>& reused, const Priorities& wanted);
    void store(RequestId id);
    void remove();
    void pin();
    void unpin();
    void reset();
    void run_copies();
    void expect_events();

    std::vector<BlockPtr> found(const Path& path) const;
    void take_primary_slot();
    void evict_primary();
    bool adaptive() const { return manager_.config().host_admission == HostAdmission::adaptive; }
    template <class Alone>
    bool newcomers_have_enough(Alone&& alone) const;
    template <class Alone>
    BlockPtr host_victim(Alone&& alone) const;
    bool take_host_slot(const Block& evicted);
    void drop(const BlockPtr& block);
    std::vector<BlockPtr> take_out(const BlockPtr& block);  // and what is below it
    bool was_here(const Path& path) const { return gone_.contains(path) || gone_before_.contains(path); }
    void enter(const Live& live);
    void let_go(const BlockPtr& block);
    bool has_child(const Block& block, bool in_primary) const;
    template <class May, class Since>
    BlockPtr first_of(May&& may, Since&& since) const;

    Random random_;
    BlockManager manager_;
    std::map<Path, BlockPtr> tree_;
    std::map<RequestId, Live> live_;
    std::vector<Pinned> pinned_;
    std::vector<BlockPtr> copies_;  // those of this step, in order
    std::uint64_t primary_free_;
    std::uint64_t host_free_;
    std::uint64_t gone_max_;
    std::set<Path> gone_;         // dropped last, up to that many
    std::set<Path> gone_before_;  // and as many before them
    Newcomers newcomers_;         // its arithmetic is the core's own: tests/core/model has it a second time
    std::uint64_t clock_ = 0;
    RequestId next_id_ = 1;
    std::vector<Going> going_;  // those of this step, in order
    struct Told {
        Path path;
        bool primary;
    };
    std::map<BlockHash, Told> told_;  // reports of the events
    std::uint64_t seen_ = 0;
};

}  // namespace kvfix::world
