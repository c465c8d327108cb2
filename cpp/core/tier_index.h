// The index of a tier that another program fills and reads: which blocks it has, where they are, and which must make
// room for others. A sequence stays open while it grows, so each call costs what is new and not what is long.
// docs/block-manager.md, section 11, has the rules.
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
    bool declined = false;  // the missing blocks are not worth pushing others out
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

    // The number of the sequence's leading blocks that can be read. They become the newest.
    std::uint32_t held(TierSequenceId id);
    // Claims slots for the blocks that are missing among its first `end`, or for their leading part if there is no room
    // for all. `priorities` are those of the last blocks before `end`. Returns nothing while another job fills one of
    // them; ask again when that has ended.
    //
    // The first `known` blocks, and those that this sequence has found or stored, were here once, or are elsewhere. If
    // they are gone from here, others have pushed them out, and would push them out again. So they take free slots
    // only, and if these are too few, neither they nor the blocks behind them are stored. A block that the policy
    // declines ends the claim in the same way.
    //
    // `reused`: a request had the blocks before and asks for them again, so the policy has nothing to decline.
    std::optional<TierClaim> claim(TierSequenceId id, std::uint32_t end, std::uint32_t known,
                                   std::span<const Priority> priorities, bool reused = false);
    // `slots` are all those of one claim, or those that are left when its last ones have been abandoned.
    void commit(std::span<const TierSlot> slots);
    // `slots` are all those of one claim, or its last ones.
    void abandon(std::span<const TierSlot> slots);
    // Gives up the last blocks of one claim, as `abandon` does, but keeps their slots: what was to fill them may still
    // write them. `abandon` gives these back.
    void set_aside(std::span<const TierSlot> slots);

    // Pins blocks first to end, as far as they can be read, and returns their slots. They stay until they are unpinned.
    std::vector<TierSlot> pin(TierSequenceId id, std::uint32_t first, std::uint32_t end);
    void unpin(std::span<const TierSlot> slots);
    // These pinned slots do not hold what was stored there. Nobody reads them again, nor the blocks that follow them.
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
        const TokenId* tokens;  // tokens of the whole block, in one of the sequence's pieces
    };
    // Deques, so that growth never moves old elements: with a vector, the caller would wait in proportion to the length
    // of the sequence.
    struct Sequence {
        TierParent root = kNone;
        std::vector<ExtraKey> extra_keys;
        std::deque<std::vector<TokenId>> pieces;  // as they arrived
        std::deque<KnownBlock> blocks;
        std::deque<Priority> priorities;  // those that callers have passed
        std::deque<Place> path;           // its leading blocks that have been found or claimed
        std::uint32_t arrived = 0;        // how many of those are held
        std::uint32_t settled = 0;        // the most that were ever known, found, or claimed and not abandoned
        std::uint32_t claimed_from = 0;
        std::uint32_t asked = 0;         // leading blocks that the policy has been asked about
        std::uint32_t asked_before = 0;  // those of them that had been asked for before
        TierAdmission::Warmth warmth = TierAdmission::Warmth::cold;
        bool is_declined = false;  // since then it takes no slot, however it grows
    };

    // The caller of each function below holds the lock.
    Sequence& at(TierSequenceId id);
    std::string extras(const Sequence& sequence, std::size_t position) const;
    static TierParent parent_behind(const Sequence& sequence);
    void follow(Sequence& sequence) const;
    std::uint32_t readable(const Sequence& sequence) const;
    void tell_policy(Sequence& sequence, std::uint32_t end, std::uint32_t known, bool reused);
    void meet(Sequence& sequence, bool reused) const;
    // Room for the block at this position: `victim` is what must go for it, if anything.
    struct Room {
        TierSlot victim = kNone;
        bool is_declined = false;
        bool is_there = true;
    };
    Room room_for(const Sequence& sequence, std::uint32_t position, bool reused);
    AskedBlock asked_block(const Sequence& sequence, std::uint32_t position) const;
    enum class Part : std::uint8_t { whole, end };
    void check_claim(std::span<const TierSlot> slots, Part part) const;
    void give_up(std::span<const TierSlot> slots, void (TierBlocks::*give_up_block)(TierSlot));

    const std::uint32_t tokens_per_block_;
    mutable ManagerMutex mutex_{"this TierIndex"};  // guards everything below
    TierBlocks blocks_;
    TierAdmission admission_;
    std::unordered_map<TierSequenceId, Sequence> sequences_;
    TierSequenceId opened_ = 0;
};

}  // namespace kvfix
