// The index of a tier that another program fills and reads: which blocks it has, where, and which must go for others. Sequences
// are open while they grow, so each call costs what is new and not what is long. docs/block-manager.md, section 11.
//
// Every public method takes the index's one lock. A call that throws has changed nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/manager_mutex.h"
#include "core/request.h"
#include "core/tier_admission.h"
#include "core/tier_blocks.h"
#include "core/types.h"

namespace kvfix {

// Slots for the blocks from `first` on, to be filled.
struct TierClaim {
    std::uint32_t first = 0;
    std::vector<TierSlot> slots;
    bool declined = false;  // what is missing is not worth pushing others out
};

struct TierIndexStats {
    std::uint32_t slots;
    std::uint32_t free;
    std::uint32_t owned;  // being filled, or pinned
    std::uint64_t evicted;
    std::uint64_t sequences;  // open
};

class TierIndex {
  public:
    TierIndex(std::uint32_t slots, std::uint32_t tokens_per_block, std::uint32_t hash_bits = 64,
              TierPolicy policy = TierPolicy::all);

    TierSequenceId open(const std::string& identity, std::vector<ExtraKey> extra_keys);
    void extend(TierSequenceId id, std::vector<TokenId> tokens);  // whole blocks
    void close(TierSequenceId id);

    // How many of its leading blocks can be read. They are the newest from now on.
    std::uint32_t held(TierSequenceId id);
    // Slots for what its first `end` blocks lack: for the leading part of it, where there is no room for all. `priorities` are
    // those of the last blocks before `end`. Nothing while somebody else fills one of them: ask again when that has ended.
    //
    // The first `known` blocks, and those that this sequence has found or stored, were here once, or are elsewhere. Where
    // they are not here any more, others have pushed them out, and would be pushed out in turn: so they take free slots alone,
    // and where these are too few, neither they nor what follows them is stored. So does what the policy declines.
    //
    // `reused`: they are filled because somebody had them before and wants them again. Then the policy has nothing to decline.
    std::optional<TierClaim> claim(TierSequenceId id, std::uint32_t end, std::uint32_t known,
                                   std::span<const Priority> priorities, bool reused = false);
    // `slots` of one claim, all of them.
    void commit(std::span<const TierSlot> slots);
    void abandon(std::span<const TierSlot> slots);

    // Slots of blocks first to end, as far as they can be read. They stay until they are unpinned.
    std::vector<TierSlot> pin(TierSequenceId id, std::uint32_t first, std::uint32_t end);
    void unpin(std::span<const TierSlot> slots);
    // These pinned slots do not hold what was stored there: nobody reads them again, or what follows them.
    void condemn(std::span<const TierSlot> slots);

    // Nothing that is here or on its way will be found again.
    void drop();

    TierIndexStats stats() const;
    std::uint32_t slots() const { return blocks_.size(); }  // never changes
    std::uint32_t tokens_per_block() const { return tokens_per_block_; }
    void check_invariants() const;

  private:
    struct Place {
        TierSlot block;
        std::uint32_t generation;
    };
    struct KnownBlock {
        std::uint64_t key;
        const TokenId* tokens;  // of the whole block, in one of the sequence's pieces
    };
    // Deques, so that growth never moves what is there: a vector would stop the caller for as long as the sequence is.
    struct Sequence {
        TierParent root = kNone;
        std::vector<ExtraKey> extra_keys;
        std::deque<std::vector<TokenId>> pieces;  // as they came
        std::deque<KnownBlock> blocks;
        std::deque<Priority> priorities;  // of those that were told
        std::deque<Place> path;           // its leading blocks that were found or claimed
        std::uint32_t arrived = 0;        // those of them that are held
        std::uint32_t settled = 0;        // the most that were ever known, found, or claimed and not abandoned
        std::uint32_t claimed_from = 0;
        std::uint32_t asked = 0;         // its leading blocks that the policy has been told of
        std::uint32_t asked_before = 0;  // those of them that somebody had asked for before
    };

    // All below: the lock is held.
    Sequence& at(TierSequenceId id);
    std::string extras(const Sequence& sequence, std::size_t position) const;
    static TierParent parent_behind(const Sequence& sequence);
    void follow(Sequence& sequence) const;
    std::uint32_t readable(const Sequence& sequence) const;
    void tell_policy(Sequence& sequence, std::uint32_t end, std::uint32_t known, bool reused);
    bool is_worth_a_slot(const Sequence& sequence, std::uint32_t position) const;
    void check_one_claim(std::span<const TierSlot> slots) const;

    const std::uint32_t tokens_per_block_;
    mutable ManagerMutex mutex_{"this TierIndex"};  // guards all that follows
    TierBlocks blocks_;
    TierAdmission admission_;
    std::unordered_map<TierSequenceId, Sequence> sequences_;
    TierSequenceId opened_ = 0;
};

}  // namespace kvfix
