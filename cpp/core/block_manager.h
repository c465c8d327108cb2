// The block manager; docs/block-manager.md says what each call does. It owns the state and its one lock. Each public
// method is one verb over that state and holds the lock; none calls back, blocks or reads a clock while it does. A call
// that throws an operating error or std::invalid_argument has changed nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/admission_planner.h"
#include "core/config.h"
#include "core/errors.h"
#include "core/event_log.h"
#include "core/grow.h"
#include "core/manager_mutex.h"
#include "core/request.h"
#include "core/results.h"
#include "core/state.h"
#include "core/stats.h"

namespace kvfix {

class BlockManager {
  public:
    explicit BlockManager(BlockManagerConfig config);
    BlockManager(const BlockManager&) = delete;
    BlockManager& operator=(const BlockManager&) = delete;

    const BlockManagerConfig& config() const { return state_.config; }

    BatchAdmission add_sequence_batch(std::span<const RequestPtr> requests, std::optional<std::uint64_t> tokens_new_max,
                                      std::optional<std::uint32_t> chunk_tokens = std::nullopt);
    Admission add_sequence(const RequestPtr& request, std::optional<std::uint32_t> chunk_tokens = std::nullopt);
    PrefixReuse analyze_prefix_reuse(const RequestPtr& request,
                                     std::optional<std::uint32_t> chunk_tokens = std::nullopt);

    // Gives ids[i] counts[i] more positions; a prompt that was admitted in chunks takes them first. `tokens`, if given,
    // holds the values of all the positions behind the prompts, in order. computed[i], if given, says how many leading
    // positions of ids[i], among those that it had before, have their values in the cache by now.
    void add_tokens(std::span<const RequestId> ids, std::span<const std::uint32_t> counts,
                    std::optional<std::span<const TokenId>> tokens,
                    std::optional<std::span<const std::uint32_t>> computed = std::nullopt);
    // The same where it takes no long time, and where the lock is free; else nothing is done, and the answer is false. For callers
    // that keep others from working meanwhile.
    bool add_few_tokens(std::span<const RequestId> ids, std::span<const std::uint32_t> counts,
                        std::optional<std::span<const TokenId>> tokens,
                        std::optional<std::span<const std::uint32_t>> computed = std::nullopt);
    // A batch belongs to the manager that made it, and its lock guards what the batch remembers. Both calls give each of its sequences one
    // more position, as those above do; `computed`: all positions that the sequences had before have their values in the cache by now.
    grow::DecodeBatch decode_batch(std::vector<RequestId> ids);
    void add_tokens(grow::DecodeBatch& batch, std::optional<std::span<const TokenId>> tokens, bool computed);
    bool add_few_tokens(grow::DecodeBatch& batch, std::optional<std::span<const TokenId>> tokens, bool computed);
    void rewind_kv_cache(RequestId id, std::uint32_t count);
    void store_context_blocks(RequestId id, std::uint32_t tokens_computed);
    std::vector<BlockId> remove_sequence(RequestId id, bool store, bool pin,
                                         std::optional<std::span<const TokenId>> tokens,
                                         std::optional<std::uint32_t> computed = std::nullopt);
    std::vector<BlockHash> commit_and_get_block_hashes(RequestId id);

    // A suspended sequence has its bytes in host and holds no primary block. Until it is back, callers may only resume
    // it, remove it or ask about it. Both calls return how many copies they queued.
    std::uint64_t suspend_sequence(RequestId id);
    std::uint64_t resume_sequence(RequestId id);
    std::vector<std::uint64_t> blocks_to_resume(RequestId id) const;

    std::vector<PinnedSlot> pin_blocks_by_id(std::span<const BlockId> ids);
    void unpin_blocks_by_id(std::span<const BlockId> ids, std::optional<Tier> tier);
    // Drops the blocks that a conversation has behind its first tokens and no other uses. Returns how many left the
    // tree.
    std::uint64_t truncate_blocks(const RequestPtr& request, std::uint32_t tokens_kept);

    std::vector<BlockIdTable> get_batch_cache_block_ids(std::span<const RequestId> ids, WindowSize window_size) const;
    void copy_batch_block_offsets(const OffsetTable& output, std::span<const RequestId> ids, std::uint32_t beam_width,
                                  std::size_t row_begin, OffsetScale scale) const;

    // Questions that a scheduler asks before it decides. They change nothing. Answers are per window, ascending.
    std::vector<std::uint64_t> blocks_to_admit(const RequestPtr& request, std::uint32_t tokens_new_max,
                                               std::optional<std::uint32_t> chunk_tokens = std::nullopt);
    std::uint64_t blocks_to_grow(std::span<const RequestId> ids, std::span<const std::uint32_t> counts) const;
    std::vector<std::uint64_t> free_blocks_without(std::span<const RequestId> ids) const;
    std::uint32_t get_token_count(RequestId id) const;
    std::uint32_t get_num_front_blocks_removed(RequestId id, WindowSize window_size) const;
    Priority get_priority_by_block_id(BlockId id) const;

    TransferBatch take_transfers();
    void complete(Ticket ticket);
    std::vector<RequestId> fail(Ticket ticket);

    void advance_time(std::int64_t now_ms);
    void refresh_blocks();
    // In steps, between which it lets go of the lock. Until it returns, nothing is found, and nothing stored.
    void reset_reuse_state();

    KvCacheStats get_kv_cache_stats() const;
    RequestStats get_request_stats(RequestId id) const;
    std::vector<BlockEvent> get_latest_events();
    std::uint64_t digest();
    void check_invariants() const;

  private:
    friend class RequestBooks;  // one more set of verbs over the state, under the same lock

    template <class MakePlan>
    bool grow_shortly(MakePlan&& make_plan);

    mutable ManagerMutex mutex_;  // guards everything below
    State state_;
    // Memory that calls use again, and what matching has found so far. No answer depends on it.
    AdmissionPlanner planner_;
    std::vector<grow::Step> steps_;
};

}  // namespace kvfix
