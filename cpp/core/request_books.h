// Between the calls of a server's loop and the block manager: single calls become a batch, and wait for what the loop
// says late.
//
// add() and add_token() only note the request. settle() admits all noted requests in one batch, so that all claims come
// before any allocation; then it grows the others in one call. Growth comes second, because it may evict what the batch
// is about to reuse.
//
// In an overlap loop a request's position runs ahead of what is known to be computed. The loop makes no call when it
// prepares a later chunk of a prompt, but each batch reports its chunks once, in order. So positions are noted as they
// move, and the i-th report of a request ends its i-th chunk.
//
// The lock of the manager guards the notes, too: a call changes both, or neither.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/block_manager.h"
#include "core/prefix_hashes.h"

namespace kvfix {

// What a request says of its blocks.
struct Prompt {
    const RequestPtr request;
    const bool is_private;  // no other request may find its blocks: they depend on more than their names say
    std::optional<PrefixHashes> hashes = std::nullopt;  // once somebody has asked, under the lock of a manager
};
using PromptPtr = std::shared_ptr<Prompt>;

class RequestBooks {
  public:
    struct Admitted {
        RequestId id;
        std::uint32_t tokens_reused;
        std::uint32_t tokens;  // of the prompt
        bool is_dummy;
        bool has_duration;  // of retention
    };
    struct GotBlocks {
        RequestId id;
        std::optional<std::uint32_t> tokens_reused;  // when it was admitted; none when it grew
        bool is_dummy;
    };
    enum class Settled : std::uint8_t {
        quiet,
        news,        // there are admitted requests or copies to take
        must_drain,  // growth waits for slots that copies hold: end these, and settle again
    };
    enum class StartAnswer : std::uint8_t {
        fits,
        gains_by_waiting,  // another request computes the block that it needs first
        lacks_room,
    };
    // One pass of a capacity scheduler over the requests that wait, in their order.
    struct Starting {
        std::vector<std::int64_t> free;     // by window; less than 0 where more is promised than there is
        std::set<BlockHash> computing;      // blocks that live requests compute next, and those that start
        std::vector<std::uint64_t> blocks;  // that the request asked about last would take
        std::uint32_t tokens_found = 0;     // in its whole cached blocks

        // Whether so many are left for the request asked about last, instead of those that were found for it.
        bool fits(std::vector<std::uint64_t> needed);
        // That request starts. Throws std::logic_error if nobody was asked about.
        void charge();
    };

    // chunk_tokens: of a prompt in one step, where prompts are reserved in chunks; then tokens_ahead may be reserved
    // beyond what is known to be computed. `manager` outlives this.
    RequestBooks(BlockManager& manager, std::optional<std::uint32_t> chunk_tokens,
                 std::optional<std::uint32_t> tokens_ahead);

    // Notes. A dummy's token is settled at once, because its refusal is expected from this very call.
    void add(PromptPtr prompt, std::uint32_t tokens_new_max, bool is_dummy);
    void add_token(RequestId id);
    // The same where it only takes a note and the lock is free; else nothing is done, and the answer is false.
    bool note_token(RequestId id);
    // The request's position may have moved. Returns whether more chunks of its prompt will come.
    bool look(RequestId id, std::uint32_t position);
    // The model begins there: behind what somebody loads.
    void begin_at(RequestId id, std::uint32_t position);

    // Admits and grows what is noted. A batch that does not fit is forgotten, and so is growth that does not fit once
    // all copies have ended, which the caller says with `drained`.
    Settled settle(bool drained = false);
    // The same where it takes no long time and the lock is free.
    std::optional<Settled> settle_shortly();
    std::vector<Admitted> take_admitted();
    // From now on, for somebody who follows which slots are whose.
    void note_who_gets_blocks();
    std::vector<GotBlocks> take_who_got_blocks();
    // Whether copies are queued. Says so as well if another thread works on it.
    bool may_have_copies();

    // A batch with a chunk of this prompt has ended; `position` is where the request stands. It may be unknown by now.
    void report(RequestId id, std::uint32_t position);
    // Leading positions whose values are in the cache, as far as is known, of a request with so many tokens by now.
    std::uint32_t filled(RequestId id, std::uint32_t tokens) const;
    // Stores what is computed of the prompt, without a report. `tokens`: those that the request has by now.
    void store(RequestId id, std::uint32_t tokens);
    void rewind(RequestId id, std::uint32_t count);
    // Ends a request that has so many tokens by now; without them it keeps nothing for others. Returns how many of its
    // tokens it must know first: then it has not ended, and the second form ends it.
    std::uint32_t remove(RequestId id, std::optional<std::uint32_t> tokens);
    void remove(RequestId id, std::span<const TokenId> tokens);
    // Nothing that live requests have computed, or will, is a prefix of anything.
    void keep_all_private();

    bool holds(RequestId id) const;  // admitted and not removed
    bool knows(RequestId id) const;  // or noted
    bool is_private(RequestId id) const;
    bool is_idle() const;  // only dummies are live
    std::vector<RequestId> live() const;
    std::uint64_t changes() const;  // counts: while it is the same, all live requests have the same blocks

    // Blocks, by window, that these requests take until their last tokens, besides those held or kept for them: as if no
    // block left its window meanwhile, or, where prompts come in chunks, none before the answer slides.
    std::vector<std::uint64_t> blocks_to_complete(std::span<const RequestId> ids) const;
    Starting start(std::vector<std::int64_t> free);
    // Whether the request may start and then grow by so many tokens. Charges nothing.
    StartAnswer ask(Starting& starting, Prompt& prompt, std::uint32_t tokens_new_max);

  private:
    struct Arrival {
        PromptPtr prompt;
        std::uint32_t tokens_new_max;
        bool is_dummy;
    };
    struct Live {
        PromptPtr prompt;  // until it is computed
        std::uint32_t prompt_tokens;
        std::uint32_t tokens_max;              // positions that it may reach
        std::uint32_t computed;                // leading positions that are in the cache, as far as reported
        std::uint32_t position;                // of the request, when it was last looked at
        std::deque<std::uint32_t> chunk_ends;  // computed or being computed, not reported yet
        bool is_private;
        bool is_dummy;
        std::uint32_t place = 0;  // scratch space of collect()

        bool is_in_prompt() const { return position < prompt_tokens; }
        void look(std::uint32_t now);
        void report(std::uint32_t now);
        std::uint32_t computed_for_growth(std::uint32_t length) const;
    };

    State& state() const { return manager_.state_; }
    bool slides() const { return state().config.windows.front().window_size.has_value(); }
    std::uint32_t ahead() const { return tokens_ahead_.value_or(kNone); }
    Live* find(RequestId id);
    const Live& at(RequestId id) const;
    std::uint32_t filled(RequestId id, const Live& live, std::uint32_t tokens) const;
    void forget_notes(RequestId id);
    void admit_noted();
    void fill(RequestId id, Live& dummy);
    void collect();
    grow::Growth collected() const;
    void grew();
    void end_growth();
    bool grow_noted(bool drained);
    Settled settle_locked(bool drained);
    Settled news() const;
    void end(RequestId id);
    bool gains_by_waiting(Starting& starting, Prompt& prompt);
    std::optional<BlockHash> name_of(Prompt& prompt, std::uint32_t block) const;

    BlockManager& manager_;
    const std::optional<std::uint32_t> chunk_tokens_;
    const std::optional<std::uint32_t> tokens_ahead_;
    // The manager's lock guards everything below.
    std::vector<Arrival> arriving_;
    std::vector<RequestId> growing_;             // one entry for each position
    std::map<RequestId, std::uint32_t> chunks_;  // positions of prompts, to be reserved with the growth of the others
    std::unordered_map<RequestId, Live> live_;
    std::unordered_set<RequestId> dummies_;  // of the live ones
    std::vector<Admitted> admitted_;         // not taken yet
    std::uint64_t changes_ = 0;
    bool notes_who_gets_blocks_ = false;
    std::vector<GotBlocks> got_blocks_;  // not taken yet
    // Memory that calls use again: what growing_ and chunks_ ask for, by request.
    std::vector<RequestId> ids_;
    std::vector<std::uint32_t> counts_;
    std::vector<std::uint32_t> computed_;
};

}  // namespace kvfix
