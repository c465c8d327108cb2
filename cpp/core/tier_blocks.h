// The slots of a tier and the blocks in them, for TierIndex. A block has the number of its slot. This class knows no
// sequences and has no lock; the caller holds the index's lock.
//
//   free -- fill --> filling -- arrive --> held -- pushed out, or dropped --> free
//                       `------ abandon -------------------------------------^
//
// A block goes only after all blocks that follow it. So every block here can be found from its root, and nobody need
// look for what hangs below it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/eviction_queue.h"
#include "core/hash_index.h"
#include "core/index_hash.h"
#include "core/reuse_ages.h"
#include "core/reuse_tree.h"
#include "core/types.h"

namespace kvfix {

using TierSequenceId = std::uint64_t;
// A slot, and the block in it: one number for both.
using TierSlot = std::uint32_t;
// The parent of a block: another block, or kTierRootBit and the number of a root.
using TierParent = std::uint32_t;
inline constexpr TierParent kTierRootBit = 1U << 31;
constexpr bool is_tier_root(TierParent parent) { return (parent & kTierRootBit) != 0; }

struct TierBlock {
    enum class State : std::uint8_t { free, filling, held };

    std::uint64_t key = 0;       // stands for its whole prefix, in the index alone
    TierSequenceId writer = 0;   // the sequence that claimed it
    TierParent parent = kNone;   // kNone: it cannot be found, and is free once nobody uses it
    std::uint64_t asked_at = 0;  // when a request asked for it last, in the time of the policy
    std::uint32_t children = 0;
    std::uint32_t pins = 0;
    std::uint32_t generation = 0;  // counts departures; distinguishes a stale number from a live one
    Priority priority = kPriorityDefault;
    BlockKind kind = 0;
    State state = State::free;
    bool bad = false;  // its bytes are not what was stored
    bool has_extras = false;
};

// What the policy says of a block as a request asks for it.
struct AskedBlock {
    BlockKind kind = 0;
    std::uint64_t at = 0;
};

class TierBlocks {
  public:
    // `seed` gives the keys. A caller that does not know it cannot make prefixes with equal keys.
    TierBlocks(std::uint32_t slots, std::uint32_t tokens_per_block, std::uint32_t hash_bits, const Secret& seed);

    const TierBlock& operator[](TierSlot block) const { return blocks_[block]; }
    std::uint32_t size() const { return static_cast<std::uint32_t>(blocks_.size()); }
    std::uint32_t free() const { return static_cast<std::uint32_t>(free_.size()); }
    std::uint32_t owned() const { return owned_; }  // filling, or pinned
    std::uint64_t evicted() const { return evicted_; }
    bool any_bad() const { return bad_ != 0; }

    // A root lives as long as it is open or has a block.
    TierParent open_root(const std::string& identity);
    void close_root(TierParent root) { let_go(root); }

    std::uint64_t root_key(TierParent root) const { return roots_[root & ~kTierRootBit].key; }
    std::uint64_t child_key(std::uint64_t parent_key, const BlockContent& content) const {
        return index_hash_.block(parent_key, content.tokens, content.extras) & key_mask_;
    }
    void prefetch(std::uint64_t key) const { index_.prefetch(IndexHash::scattered(key)); }
    // The block with this content behind `parent`, in whatever state, or kNone.
    TierSlot find(TierParent parent, std::uint64_t key, const BlockContent& content) const;

    // The block that would go for one behind `parent`, or kNone: of those of the lowest priority the least by
    // `going(kind, asked at)`. Of blocks of one kind the one that nobody has used for the longest goes first.
    template <class GoingOf>
    TierSlot victim(TierParent parent, GoingOf&& going);
    // Starts to fill a block, in a free slot or, if there is none, in place of `victim`.
    TierSlot fill(TierParent parent, std::uint64_t key, const BlockContent& content, Priority priority,
                  TierSequenceId writer, AskedBlock asked, TierSlot victim);
    void note(TierSlot block, AskedBlock asked);  // a request asks for it
    void arrive(TierSlot block);
    void abandon(TierSlot block);    // the last block of a claim first
    void set_aside(TierSlot block);  // as well, but its slot stays until it is abandoned

    void pin(TierSlot block);
    void unpin(TierSlot block);
    void touch(TierSlot block);  // makes it the newest of the blocks that may go
    void condemn(TierSlot block);
    void drop_all();

    void check_invariants() const;

  private:
    struct Root {
        std::string identity;
        std::uint64_t key = 0;
        std::uint32_t users = 0;  // open sequences, and blocks that hang on it
    };

    std::string_view extras(TierSlot block) const;
    BlockContent content(TierSlot block) const;
    void hold(TierParent parent);
    void let_go(TierParent parent);
    TierSlot take_slot(TierSlot victim);
    EvictionQueue& queue_of(TierSlot block) { return queues_[blocks_[block].kind]; }
    const EvictionQueue& queue_of(TierSlot block) const { return queues_[blocks_[block].kind]; }
    void detach(TierSlot block);
    void release(TierSlot block);
    void review(TierSlot block);
    void note_owned(TierSlot block, bool before);
    static bool is_owned(const TierBlock& block) { return block.state == TierBlock::State::filling || block.pins != 0; }

    std::uint32_t tokens_per_block_;
    const std::uint64_t key_mask_;
    const IndexHash index_hash_;
    std::vector<TierBlock> blocks_;
    std::vector<TokenId> tokens_;
    std::unordered_map<TierSlot, std::string> extras_;  // few blocks have any
    std::vector<TierSlot> free_;
    HashIndex index_;
    // Held, findable and not pinned, by kind. Blocks that others follow are parked, or will be when their turn comes.
    std::array<EvictionQueue, kBlockKinds> queues_;
    std::vector<Root> roots_;
    std::vector<std::uint32_t> free_roots_;
    struct KeyedHash {
        Secret key;
        std::size_t operator()(std::string_view text) const { return SipHash(key).end(text).first; }
    };
    std::unordered_map<std::string, std::uint32_t, KeyedHash> root_by_identity_;
    std::uint32_t owned_ = 0;
    std::uint32_t bad_ = 0;
    std::uint64_t evicted_ = 0;
};

template <class GoingOf>
TierSlot TierBlocks::victim(TierParent parent, GoingOf&& going) {
    hold(parent);  // which stays, whatever goes
    TierSlot out = kNone;
    std::pair<Priority, Going> of_out;
    for (EvictionQueue& queue : queues_) {
        const auto first = static_cast<TierSlot>(
            queue.victim([this](BlockIndex at) { return blocks_[static_cast<TierSlot>(at)].children != 0; }));
        if (first == kNone || blocks_[first].children != 0) {
            continue;  // every block that could go is followed by one in use, or of another kind
        }
        const TierBlock& record = blocks_[first];
        if (const std::pair of_first(record.priority, going(record.kind, record.asked_at));
            out == kNone || of_first < of_out) {
            out = first;
            of_out = of_first;
        }
    }
    let_go(parent);
    return out;
}

}  // namespace kvfix
