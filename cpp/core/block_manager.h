// The block manager: docs/block-manager.md says what each call does. Every public method takes the manager's one lock; none
// calls back, blocks or reads a clock while it is held. A call that throws an operating error or std::invalid_argument has
// changed nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/admission_plan.h"
#include "core/config.h"
#include "core/event_log.h"
#include "core/manager_mutex.h"
#include "core/request.h"
#include "core/sequence.h"
#include "core/stats.h"
#include "core/transfers.h"
#include "core/window_pool.h"

namespace kvfix {

using BlockId = std::uint64_t;

struct Admission {
    RequestId request_id = 0;
    std::uint64_t tokens_reused = 0;
    std::uint64_t tokens_new = 0;
    std::uint64_t blocks_reused = 0;
    std::uint64_t blocks_onboarded = 0;
    std::uint64_t blocks_new = 0;
};

struct BatchAdmission {
    std::vector<Admission> admitted;
    std::vector<RequestId> deferred;
};

struct PrefixReuse {
    std::uint64_t tokens = 0;
    std::uint64_t blocks_primary = 0;
    std::uint64_t blocks_host = 0;
};

struct TransferItem {
    TransferKind kind;
    SlotIndex slot_src;
    SlotIndex slot_dst;
    std::uint32_t tokens;
    BlockId block_id;
    WindowSize window_size;
};

struct TransferBatch {
    Ticket ticket = 0;
    std::vector<TransferItem> items;
};

struct PinnedBlock {
    BlockHash block_hash;
    BlockId block_id;
    SlotIndex slot;
    Tier tier;
    WindowSize window_size;
};

struct PinnedSlot {
    SlotIndex slot;
    Tier tier;
};

// A caller's int32 table (windows, rows, 2, blocks), C-contiguous.
struct OffsetTable {
    std::int32_t* data;
    std::size_t windows;
    std::size_t rows;
    std::size_t blocks;
};

struct OffsetScale {
    std::int32_t scale = 1;
    std::int32_t v_offset = 0;
};

// [request][beam][block]; -1 where the block has left the window.
using BlockIdTable = std::vector<std::vector<std::int64_t>>;

class BlockManager {
  public:
    explicit BlockManager(BlockManagerConfig config);

    const BlockManagerConfig& config() const { return config_; }

    BatchAdmission add_sequence_batch(std::span<const RequestPtr> requests,
                                      std::optional<std::uint64_t> tokens_new_max);
    Admission add_sequence(const RequestPtr& request);
    PrefixReuse analyze_prefix_reuse(const RequestPtr& request);

    // counts[i] more positions for ids[i]; tokens, if any, are the values of all of them in order. computed[i], if any: leading
    // positions of ids[i], of those that it had before, whose values are in the cache by now.
    void add_tokens(std::span<const RequestId> ids, std::span<const std::uint32_t> counts,
                    std::optional<std::span<const TokenId>> tokens,
                    std::optional<std::span<const std::uint32_t>> computed = std::nullopt);
    void rewind_kv_cache(RequestId id, std::uint32_t count);
    void store_context_blocks(RequestId id, std::uint32_t tokens_computed);
    std::vector<BlockId> remove_sequence(RequestId id, bool store, bool pin,
                                         std::optional<std::span<const TokenId>> tokens,
                                         std::optional<std::uint32_t> computed = std::nullopt);

    std::vector<BlockId> pin_blocks(RequestId id);
    std::vector<PinnedSlot> pin_blocks_by_id(std::span<const BlockId> ids);
    void unpin_blocks_by_id(std::span<const BlockId> ids, std::optional<Tier> tier);
    // With a request the blocks are looked up by its content, and hashes that are not of its prompt, in their order, are refused.
    std::vector<std::optional<PinnedBlock>> find_and_pin_blocks_by_hash(std::span<const BlockHash> hashes,
                                                                        std::optional<Tier> tier, bool stop_on_miss,
                                                                        WindowSize window_size,
                                                                        const RequestPtr& request = nullptr);

    std::vector<BlockIdTable> get_batch_cache_block_ids(std::span<const RequestId> ids, WindowSize window_size) const;
    void copy_batch_block_offsets(const OffsetTable& output, std::span<const RequestId> ids, std::uint32_t beam_width,
                                  std::size_t row_begin, OffsetScale scale) const;

    TransferBatch take_transfers();
    void complete(Ticket ticket);
    std::vector<RequestId> fail(Ticket ticket);

    void advance_time(std::int64_t now_ms);
    void refresh_blocks();
    void reset_reuse_state();

    KvCacheStats get_kv_cache_stats() const;
    RequestStats get_request_stats(RequestId id) const;
    std::vector<BlockEvent> get_latest_events();
    std::uint64_t digest() const;
    void check_invariants() const;

  private:
    struct Growth {
        Sequence* sequence;
        std::uint32_t count;
        std::uint32_t computed;
    };
    struct BlockPlace {
        WindowPool* pool;
        BlockIndex block;
    };

    // All below: the lock is held.
    std::size_t find_window(WindowSize window_size) const;
    BlockPlace place_of(BlockId id) const;
    static BlockId id_of(const WindowPool& pool, BlockIndex block) { return pool.block_id_base + block; }

    // admission.cc
    void check_requests(std::span<const RequestPtr> requests) const;
    BatchAdmission admit_batch(std::span<const RequestPtr> requests, std::optional<std::uint64_t> tokens_new_max);
    void claim_all(const RequestPlan& plan, Sequence& sequence);
    void fill_window(const RequestPlan& plan, Sequence& sequence, std::size_t window, Admission& admission);
    void copy_partial(const RequestPlan& plan, Sequence& sequence, std::size_t window);
    void count_admission(const RequestPlan& plan, const Admission& admission, RequestStats& stats);
    BlockIndex allocate_prompt_block(const Request& request, WindowPool& pool, std::uint32_t position);

    // growth.cc
    void plan_growth(std::span<const RequestId> ids, std::span<const std::uint32_t> counts,
                     std::optional<std::span<const TokenId>> tokens,
                     std::optional<std::span<const std::uint32_t>> computed);
    void check_growth_capacity() const;
    void grow(const Growth& growth);
    static void check_computed(const Sequence& sequence, std::uint32_t computed);
    void leave_windows(Sequence& sequence);
    void leave_window(Sequence& sequence, std::size_t window, std::uint32_t left);

    // storing.cc
    void store_blocks(Sequence& sequence, std::size_t window, std::uint32_t tokens);
    std::uint32_t first_unsure(Sequence& sequence) const;
    std::uint32_t write_content(const Sequence& sequence, std::size_t window, std::uint32_t end);
    bool store_next(Sequence& sequence, std::size_t window);
    BlockIndex find_equal(const Sequence& sequence, std::size_t window);
    void store_last_partial(Sequence& sequence, std::size_t window, std::uint32_t tokens);
    void check_whole_tokens(const Sequence& sequence, std::span<const TokenId> tokens) const;
    void let_go_all(Sequence& sequence);

    // invariants.cc
    void check_sequences() const;
    void check_transfers() const;

    // pins.cc
    void check_held_settled(const Sequence& sequence) const;
    std::vector<BlockId> pin_held(const Sequence& sequence);
    std::vector<std::uint32_t> positions_of(std::span<const BlockHash> hashes, const Request& request) const;
    std::vector<BlockIndex> find_on_path(const WindowPool& pool, const Request& request,
                                         std::span<const std::uint32_t> positions) const;

    mutable ManagerMutex mutex_;  // guards everything below
    const BlockManagerConfig config_;
    TransferLedger ledger_;
    EventLog events_;
    CacheCounters closed_;     // of iterations that have ended
    CacheCounters iteration_;  // of the last one that ended
    CacheCounters current_;
    std::vector<std::unique_ptr<WindowPool>> pools_;
    SequenceTable sequences_;
    std::int64_t now_ms_ = 0;

    // Scratch, kept for its memory.
    AdmissionPlan plan_;
    std::vector<Growth> growth_;
    std::vector<TokenId> content_;
    std::uint64_t mark_ = 0;
};

}  // namespace kvfix
