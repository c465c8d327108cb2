#include "core/block_manager.h"

#include <deque>
#include <iterator>
#include <mutex>
#include <utility>

#include "core/admit.h"
#include "core/ask.h"
#include "core/commit.h"
#include "core/digest.h"
#include "core/evict.h"
#include "core/invariants.h"
#include "core/pause_point.h"
#include "core/pin.h"
#include "core/preempt.h"
#include "core/prune.h"
#include "core/report.h"
#include "core/retain.h"
#include "core/store.h"
#include "core/tables.h"
#include "core/transfer.h"

namespace kvfix {
namespace {

// Blocks that a reset removes before it lets others have the lock: a fraction of a millisecond.
constexpr std::uint32_t kResetAtOnce = 1024;

BlockManagerConfig checked(BlockManagerConfig config) {
    check_config(config);
    return config;
}

}  // namespace

BlockManager::BlockManager(BlockManagerConfig config) : state_(checked(std::move(config))) {}

// ------------------------------------------------------------------------------------------------ sequences

BatchAdmission BlockManager::add_sequence_batch(std::span<const RequestPtr> requests,
                                                std::optional<std::uint64_t> tokens_new_max,
                                                std::optional<std::uint32_t> chunk_tokens) {
    const ManagerGuard guard(mutex_);
    return admit::batch(state_, planner_, requests, tokens_new_max, chunk_tokens.value_or(kNone));
}

Admission BlockManager::add_sequence(const RequestPtr& request, std::optional<std::uint32_t> chunk_tokens) {
    const ManagerGuard guard(mutex_);
    return admit::batch(state_, planner_, {&request, 1}, std::nullopt, chunk_tokens.value_or(kNone)).admitted.front();
}

PrefixReuse BlockManager::analyze_prefix_reuse(const RequestPtr& request, std::optional<std::uint32_t> chunk_tokens) {
    const ManagerGuard guard(mutex_);
    return admit::analyze(state_, planner_, request, chunk_tokens.value_or(kNone));
}

void BlockManager::add_tokens(std::span<const RequestId> ids, std::span<const std::uint32_t> counts,
                              std::optional<std::span<const TokenId>> tokens,
                              std::optional<std::span<const std::uint32_t>> computed) {
    const ManagerGuard guard(mutex_);
    grow::carry_out(state_, grow::plan(state_, steps_, {ids, counts, tokens, computed}));
}

bool BlockManager::add_few_tokens(std::span<const RequestId> ids, std::span<const std::uint32_t> counts,
                                  std::optional<std::span<const TokenId>> tokens,
                                  std::optional<std::span<const std::uint32_t>> computed) {
    const grow::Growth growth{ids, counts, tokens, computed};
    return grow::are_few(state_.config, growth) && grow_shortly([&] { return grow::plan(state_, steps_, growth); });
}

template <class MakePlan>
bool BlockManager::grow_shortly(MakePlan&& make_plan) {
    const std::unique_lock guard(mutex_, std::try_to_lock);
    if (!guard.owns_lock()) {
        return false;
    }
    const grow::Plan plan = make_plan();
    if (!grow::is_short(state_, plan)) {
        return false;
    }
    grow::carry_out(state_, plan);
    return true;
}

grow::DecodeBatch BlockManager::decode_batch(std::vector<RequestId> ids) {
    const ManagerGuard guard(mutex_);
    grow::DecodeBatch batch{.ids = std::move(ids), .steps = {}};
    grow::look_up(state_, batch);
    return batch;
}

void BlockManager::add_tokens(grow::DecodeBatch& batch, std::optional<std::span<const TokenId>> tokens, bool computed) {
    const ManagerGuard guard(mutex_);
    grow::carry_out(state_, grow::plan(state_, batch, tokens, computed));
}

bool BlockManager::add_few_tokens(grow::DecodeBatch& batch, std::optional<std::span<const TokenId>> tokens,
                                  bool computed) {
    return grow::are_few(state_.config, batch) &&
           grow_shortly([&] { return grow::plan(state_, batch, tokens, computed); });
}

void BlockManager::rewind_kv_cache(RequestId id, std::uint32_t count) {
    const ManagerGuard guard(mutex_);
    grow::rewind(state_, id, count);
}

void BlockManager::store_context_blocks(RequestId id, std::uint32_t tokens_computed) {
    const ManagerGuard guard(mutex_);
    store::context(state_, id, tokens_computed);
}

std::vector<BlockId> BlockManager::remove_sequence(RequestId id, bool store, bool pin,
                                                   std::optional<std::span<const TokenId>> tokens,
                                                   std::optional<std::uint32_t> computed) {
    const ManagerGuard guard(mutex_);
    return store::remove(state_, id, store, pin, tokens, computed);
}

std::vector<BlockHash> BlockManager::commit_and_get_block_hashes(RequestId id) {
    const ManagerGuard guard(mutex_);
    return commit::hashes(state_, id);
}

// ------------------------------------------------------------------------------------------------ preemption

std::uint64_t BlockManager::suspend_sequence(RequestId id) {
    const ManagerGuard guard(mutex_);
    return preempt::suspend(state_, id);
}

std::uint64_t BlockManager::resume_sequence(RequestId id) {
    const ManagerGuard guard(mutex_);
    return preempt::resume(state_, id);
}

std::vector<std::uint64_t> BlockManager::blocks_to_resume(RequestId id) const {
    const ManagerGuard guard(mutex_);
    return preempt::blocks_to_resume(state_, id);
}

// ------------------------------------------------------------------------------------------------ pins

std::vector<PinnedSlot> BlockManager::pin_blocks_by_id(std::span<const BlockId> ids) {
    const ManagerGuard guard(mutex_);
    return pin::by_id(state_, ids);
}

void BlockManager::unpin_blocks_by_id(std::span<const BlockId> ids, std::optional<Tier> tier) {
    const ManagerGuard guard(mutex_);
    pin::end_by_id(state_, ids, tier);
}

// ------------------------------------------------------------------------------------------------ by name

std::uint64_t BlockManager::truncate_blocks(const RequestPtr& request, std::uint32_t tokens_kept) {
    const ManagerGuard guard(mutex_);
    return prune::conversation(state_, *request, tokens_kept);
}

// ------------------------------------------------------------------------------------------------ block lists

std::vector<BlockIdTable> BlockManager::get_batch_cache_block_ids(std::span<const RequestId> ids,
                                                                  WindowSize window_size) const {
    const ManagerGuard guard(mutex_);
    return tables::block_ids(state_, ids, window_size);
}

void BlockManager::copy_batch_block_offsets(const OffsetTable& output, std::span<const RequestId> ids,
                                            std::uint32_t beam_width, std::size_t row_begin, OffsetScale scale) const {
    const ManagerGuard guard(mutex_);
    tables::copy_offsets(state_, output, ids, beam_width, row_begin, scale);
}

// ------------------------------------------------------------------------------------------------ questions

std::vector<std::uint64_t> BlockManager::blocks_to_admit(const RequestPtr& request, std::uint32_t tokens_new_max,
                                                         std::optional<std::uint32_t> chunk_tokens) {
    const ManagerGuard guard(mutex_);
    return ask::blocks_to_admit(state_, planner_, request, tokens_new_max, chunk_tokens.value_or(kNone));
}

std::uint64_t BlockManager::blocks_to_grow(std::span<const RequestId> ids,
                                           std::span<const std::uint32_t> counts) const {
    const ManagerGuard guard(mutex_);
    return ask::blocks_to_grow(state_, ids, counts);
}

std::vector<std::uint64_t> BlockManager::free_blocks_without(std::span<const RequestId> ids) const {
    const ManagerGuard guard(mutex_);
    return ask::free_blocks_without(state_, ids);
}

std::uint32_t BlockManager::get_token_count(RequestId id) const {
    const ManagerGuard guard(mutex_);
    return state_.sequences.at_any(id).length;
}

std::uint32_t BlockManager::get_num_front_blocks_removed(RequestId id, WindowSize window_size) const {
    const ManagerGuard guard(mutex_);
    return ask::front_blocks_removed(state_, id, window_size);
}

Priority BlockManager::get_priority_by_block_id(BlockId id) const {
    const ManagerGuard guard(mutex_);
    return ask::priority_of(state_, id);
}

// ------------------------------------------------------------------------------------------------ transfers

TransferBatch BlockManager::take_transfers() {
    const ManagerGuard guard(mutex_);
    return transfer::take(state_);
}

void BlockManager::complete(Ticket ticket) {
    const ManagerGuard guard(mutex_);
    transfer::complete(state_, ticket);
}

std::vector<RequestId> BlockManager::fail(Ticket ticket) {
    const ManagerGuard guard(mutex_);
    return transfer::fail(state_, ticket);
}

// ------------------------------------------------------------------------------------------------ upkeep and numbers

void BlockManager::advance_time(std::int64_t now_ms) {
    const ManagerGuard guard(mutex_);
    retain::advance_time(state_, now_ms);
}

void BlockManager::refresh_blocks() {
    const ManagerGuard guard(mutex_);
    state_.closed.add(state_.current);
    state_.iteration = std::exchange(state_.current, {});
}

void BlockManager::reset_reuse_state() {
    {
        const ManagerGuard guard(mutex_);
        evict::begin_reset(state_);
    }
    evict::Sweep sweep;
    for (;;) {
        {
            const ManagerGuard guard(mutex_);
            if (evict::reset_some(state_, sweep, kResetAtOnce)) {
                return;
            }
        }
        KVFIX_PAUSE("reset.between");
    }
}

KvCacheStats BlockManager::get_kv_cache_stats() const {
    const ManagerGuard guard(mutex_);
    return stats_of(state_);
}

RequestStats BlockManager::get_request_stats(RequestId id) const {
    const ManagerGuard guard(mutex_);
    return state_.sequences.at_any(id).stats;
}

std::vector<BlockEvent> BlockManager::get_latest_events() {
    std::deque<BlockEvent> waiting;
    {
        const ManagerGuard guard(mutex_);
        waiting = state_.events.drain();
    }
    return {std::make_move_iterator(waiting.begin()), std::make_move_iterator(waiting.end())};
}

std::uint64_t BlockManager::digest() {
    const ManagerGuard guard(mutex_);
    return digest_of(state_);
}

void BlockManager::check_invariants() const {
    const ManagerGuard guard(mutex_);
    kvfix::check_invariants(state_);
    planner_.check_remembered(state_);
}

}  // namespace kvfix
