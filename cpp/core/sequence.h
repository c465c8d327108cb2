// A live request: which blocks it holds in each window, how long it is, and how much of it is known and computed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/block_hash.h"
#include "core/errors.h"
#include "core/request.h"
#include "core/reuse_tree.h"
#include "core/set_digest.h"
#include "core/stats.h"
#include "core/types.h"

namespace kvfix {

// A sequence's blocks in one window. Beams share the prompt's full blocks; each has its own blocks behind them. With
// one beam all blocks are in `shared`.
struct HeldBlocks {
    std::vector<BlockIndex> shared;              // kNone if a block has left the window
    std::vector<std::vector<BlockIndex>> tails;  // [beam], only with several beams
    std::uint32_t left = 0;                      // leading blocks that have left the window
    // Leading blocks that are known to have their bytes. They keep them while they are held, because their slots stay
    // theirs.
    std::uint32_t sure = 0;
    std::uint32_t kept = 0;  // slots kept for the rest of the prompt
    // at most this many blocks of its own plus kept slots, while part of the prompt is not reserved
    std::uint32_t room = 0;
    // Too few slots are kept for the rest, so the slots of blocks that leave come back. Nobody else may hold such
    // blocks, so until they leave they do not enter the tree.
    bool rolls = false;
    WatchedDigest digest;  // of what is held: beam, position, block

    std::size_t size() const { return shared.size() + (tails.empty() ? 0 : tails.front().size()); }
    BlockIndex at(std::uint32_t beam, std::size_t position) const {
        return position < shared.size() ? shared[position] : tails[beam][position - shared.size()];
    }
    // Appends the beam's next block. Until the tails begin, that is the next block of all beams.
    void append(std::uint32_t beam, BlockIndex block) {
        digest.add(beam, size_of(beam), block);
        list_of(beam).push_back(block);
    }
    BlockIndex take_last(std::uint32_t beam) {
        const BlockIndex block = list_of(beam).back();
        list_of(beam).pop_back();
        digest.remove(beam, size_of(beam), block);
        return block;
    }
    // Keeps the place of a block that has left the window. A shared block is taken from beam 0.
    BlockIndex take_away(std::uint32_t beam, std::size_t position) {
        BlockIndex& place = position < shared.size() ? shared[position] : tails[beam][position - shared.size()];
        digest.remove(beam, position, place);
        return std::exchange(place, kNone);
    }
    std::uint64_t digest_of_held();
    std::size_t size_of(std::uint32_t beam) const { return shared.size() + (tails.empty() ? 0 : tails[beam].size()); }
    // Visits every held block once, first to last, beam by beam.
    template <class Visit>
    void for_each(Visit&& visit) const {
        for (std::size_t i = left; i < shared.size(); ++i) {
            visit(shared[i]);
        }
        const std::size_t left_tail = left > shared.size() ? left - shared.size() : 0;
        for (const auto& tail : tails) {
            for (std::size_t i = left_tail; i < tail.size(); ++i) {
                visit(tail[i]);
            }
        }
    }

    // The same, but the beams' own blocks come first, then the shared ones from the last on.
    template <class Visit>
    void for_each_from_last(Visit&& visit) const {
        const std::size_t left_tail = left > shared.size() ? left - shared.size() : 0;
        for (const auto& tail : tails) {
            for (std::size_t i = left_tail; i < tail.size(); ++i) {
                visit(tail[i]);
            }
        }
        for (std::size_t i = shared.size(); i-- > left;) {
            visit(shared[i]);
        }
    }

  private:
    std::vector<BlockIndex>& list_of(std::uint32_t beam) { return tails.empty() ? shared : tails[beam]; }
};

// The place at which storing continues: everything before `position` has entered the tree, below `parent`.
struct StoreCursor {
    std::uint32_t position = 0;
    BlockIndex parent = kNone;     // the node at position - 1
    std::uint32_t generation = 0;  // of that node; once it has changed, storing starts over
    ReuseTree::Prefix prefix;      // in a window instead: what precedes `position`, wherever it is by now
};

// The number of blocks that one window needs for the request's first `length` positions. Beams share the prompt's full
// ones.
inline std::uint64_t blocks_over(const Request& request, std::uint32_t length, std::uint32_t tokens_per_block) {
    const std::uint32_t blocks = ceil_div(length, tokens_per_block);
    const std::uint32_t shared = std::min(blocks, request.num_tokens() / tokens_per_block);
    return shared + std::uint64_t{blocks - shared} * request.beam_width;
}

struct Sequence {
    // The fields that every step of growth reads come first, in two cache lines.
    RequestPtr request;
    std::vector<TokenId> grown_tokens;  // known values after the prompt; learn() and forget() change them
    std::uint32_t length = 0;           // positions reserved, computed or not
    std::uint32_t computed = 0;  // leading positions whose values are in the cache, as far as callers have reported
    std::uint64_t mark = 0;      // scratch space for calls that take several ids
    std::uint32_t changed_at = kNone;  // where the table lists the sequence as changed
    bool suspended = false;            // it keeps its blocks in host, and owns none
    WatchedDigest grown_digest;        // of grown_tokens
    std::uint32_t prompt_tokens = 0;   // of the request, whose memory growth need not touch; the same of `beams`
    std::uint32_t beams = 1;

    std::uint32_t claimed = 0;  // leading blocks that it shares with the sequences that stored them
    // The first block that left a window before its bytes had arrived. Nobody knows whether they ever arrived, so
    // nothing from there on is stored, in any window: every layer computes from what the layers before it made of those
    // bytes.
    std::uint32_t doubtful_from = kNone;
    // The hashes of its full blocks, as far as anyone has asked. forget() takes back those whose tokens go, given the
    // block's size.
    std::vector<BlockHash> hashes;
    std::vector<HeldBlocks> windows;
    std::vector<StoreCursor> cursors;
    RequestStats stats;

    std::uint64_t request_digest = 0;  // digest of the request; 0 until it is asked for
    std::uint64_t digest = 0;          // digest of the whole sequence, as the table's digest counts it

    void learn(std::span<const TokenId> tokens) {
        for (const TokenId token : tokens) {
            grown_digest.add(grown_tokens.size(), token);
            grown_tokens.push_back(token);
        }
    }
    // Forgets what is known from that position on.
    void forget(std::uint32_t position, std::uint32_t tokens_per_block);
    // Throws std::invalid_argument if the sequence is suspended.
    void check_not_suspended() const {
        if (suspended) [[unlikely]] {
            refuse_suspended();
        }
    }
    RequestId id() const { return request->id; }
    std::uint32_t beam_width() const { return beams; }
    std::uint32_t prompt_length() const { return prompt_tokens; }
    // Leading positions whose tokens are known.
    std::uint32_t known() const { return prompt_length() + static_cast<std::uint32_t>(grown_tokens.size()); }
    // Leading positions that others may find: their values are in the cache, and their tokens are known.
    std::uint32_t storable() const { return std::min(computed, known()); }
    // The position at which the values that growth brings begin. Those of the prompt are known before its positions are
    // reserved.
    std::uint32_t values_begin() const { return std::max(length, prompt_length()); }
    void read_tokens(std::uint32_t position, std::span<TokenId> out) const;
    std::uint64_t digest_of_grown();

  private:
    [[noreturn]] void refuse_suspended() const;
};

// Sequences by request id. Addresses are stable, and the vectors of ended sequences are used again.
class SequenceTable {
  public:
    const Sequence* find(RequestId id) const {
        const auto found = live_.find(id);
        return found == live_.end() ? nullptr : found->second.get();
    }
    // Throws std::invalid_argument if the sequence is suspended; at_any() does not.
    const Sequence& at(RequestId id) const {
        const Sequence& sequence = at_any(id);
        sequence.check_not_suspended();
        return sequence;
    }
    const Sequence& at_any(RequestId id) const {
        const Sequence* sequence = find(id);
        if (sequence == nullptr) {
            throw UnknownRequest(id);
        }
        return *sequence;
    }
    // A caller that asks for a mutable sequence is assumed to change it.
    Sequence& at(RequestId id) {
        Sequence& sequence = at_any(id);
        sequence.check_not_suspended();
        return sequence;
    }
    // The same for a live sequence that was found before.
    void begin_change(Sequence& sequence) {
        sequence.check_not_suspended();
        note_change(sequence);
    }
    Sequence& at_any(RequestId id) {
        const auto found = live_.find(id);
        if (found == live_.end()) {
            throw UnknownRequest(id);
        }
        note_change(*found->second);
        return *found->second;
    }
    Sequence& add(RequestPtr request, std::size_t windows);
    void remove(RequestId id);
    std::size_t size() const { return live_.size(); }
    // The number of sequences that have ended. As long as it is the same, every live sequence is where it was found.
    std::uint64_t ended() const { return ended_; }
    // Ascending by id, because the table's own order depends on its history.
    std::vector<const Sequence*> ordered() const;

    // A digest of all sequences. `digest_of` gives that of one; it is called for those that changed since the last
    // call.
    template <class DigestOf>
    std::uint64_t digest(DigestOf&& digest_of) {
        for (Sequence* sequence : changed_) {
            sequence->changed_at = kNone;
            digest_.remove(sequence->digest);
            sequence->digest = digest_of(*sequence);
            digest_.add(sequence->digest);
        }
        changed_.clear();
        return digest_.value();
    }

  private:
    void note_change(Sequence& sequence) {
        if (sequence.changed_at == kNone) {
            sequence.changed_at = static_cast<std::uint32_t>(changed_.size());
            changed_.push_back(&sequence);
        }
    }
    void forget_change(Sequence& sequence);

    std::unordered_map<RequestId, std::unique_ptr<Sequence>> live_;
    std::vector<std::unique_ptr<Sequence>> spare_;
    std::vector<Sequence*> changed_;  // since the last call of digest()
    SetDigest digest_;
    std::uint64_t ended_ = 0;
};

}  // namespace kvfix
