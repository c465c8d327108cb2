#include "core/block_manager.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvfix {
namespace {

constexpr std::int64_t kTimeMaxMs = std::int64_t{1} << 62;

BlockManagerConfig checked(BlockManagerConfig config) {
    check_config(config);
    return config;
}

}  // namespace

BlockManager::BlockManager(BlockManagerConfig config)
    : config_(checked(std::move(config))), events_(config_.events_max) {
    std::uint64_t block_id_base = 0;
    for (std::uint32_t window = 0; window < config_.windows.size(); ++window) {
        pools_.push_back(
            std::make_unique<WindowPool>(window, PoolServices{config_, ledger_, events_, current_}, block_id_base));
        block_id_base += pools_.back()->store.size();
    }
}

std::size_t BlockManager::find_window(WindowSize window_size) const {
    if (!window_size && pools_.size() == 1) {
        return 0;
    }
    std::string sizes;
    for (std::size_t window = 0; window < pools_.size(); ++window) {
        const WindowSize size = pools_[window]->config.window_size;
        if (window_size && size == window_size) {
            return window;
        }
        sizes += (window == 0 ? "" : ", ") + (size ? std::to_string(*size) : std::string("None"));
    }
    throw std::invalid_argument("window_size is " + (window_size ? std::to_string(*window_size) : std::string("None")) +
                                "; this manager has " + sizes);
}

// ------------------------------------------------------------------------------------------------ block lists

std::vector<BlockIdTable> BlockManager::get_batch_cache_block_ids(std::span<const RequestId> ids,
                                                                  WindowSize window_size) const {
    const ManagerGuard guard(mutex_);
    const std::size_t window = find_window(window_size);
    std::vector<BlockIdTable> out;
    out.reserve(ids.size());
    for (const RequestId id : ids) {
        const Sequence& sequence = sequences_.at(id);
        const HeldBlocks& held = sequence.windows[window];
        BlockIdTable table(sequence.beam_width());
        for (std::uint32_t beam = 0; beam < table.size(); ++beam) {
            for (std::size_t position = 0; position < held.size(); ++position) {
                const BlockIndex block = held.at(beam, position);
                table[beam].push_back(block == kNone ? -1 : static_cast<std::int64_t>(id_of(*pools_[window], block)));
            }
        }
        out.push_back(std::move(table));
    }
    return out;
}

void BlockManager::copy_batch_block_offsets(const OffsetTable& output, std::span<const RequestId> ids,
                                            std::uint32_t beam_width, std::size_t row_begin, OffsetScale scale) const {
    const ManagerGuard guard(mutex_);
    const auto require = [](bool ok, const std::string& why) {
        if (!ok) {
            throw std::invalid_argument("copy_batch_block_offsets: " + why);
        }
    };
    require(output.windows == pools_.size(), "output has " + std::to_string(output.windows) +
                                                 " pools; this manager has " + std::to_string(pools_.size()) +
                                                 " windows");
    require(beam_width >= 1, "beam_width is 0");
    require(row_begin <= output.rows && ids.size() <= (output.rows - row_begin) / beam_width,
            std::to_string(ids.size()) + " requests of " + std::to_string(beam_width) + " beams from row " +
                std::to_string(row_begin) + " do not fit " + std::to_string(output.rows) + " rows");
    for (const auto& pool : pools_) {
        const std::int64_t largest = std::int64_t{pool->store.slots(kPrimary)} * scale.scale + scale.v_offset;
        require(scale.scale > 0 && scale.v_offset >= 0 && largest <= std::numeric_limits<std::int32_t>::max(),
                "scale " + std::to_string(scale.scale) + " and v_offset " + std::to_string(scale.v_offset) +
                    " take slot " + std::to_string(pool->store.slots(kPrimary) - 1) + " out of int32, or are negative");
    }
    for (const RequestId id : ids) {
        const Sequence& sequence = sequences_.at(id);
        const std::string who = "request " + std::to_string(id) + " has ";
        require(beam_width <= sequence.beam_width(),
                who + std::to_string(sequence.beam_width()) + " beams, not " + std::to_string(beam_width));
        const std::size_t blocks = sequence.windows.front().size();
        require(blocks <= output.blocks,
                who + std::to_string(blocks) + " blocks; a row of output has " + std::to_string(output.blocks));
    }
    for (std::size_t window = 0; window < pools_.size(); ++window) {
        std::size_t row = window * output.rows + row_begin;
        for (const RequestId id : ids) {
            const HeldBlocks& held = sequences_.at(id).windows[window];
            for (std::uint32_t beam = 0; beam < beam_width; ++beam, ++row) {
                std::int32_t* k = output.data + row * 2 * output.blocks;
                std::int32_t* v = k + output.blocks;
                for (std::size_t position = 0; position < held.size(); ++position) {
                    const BlockIndex block = held.at(beam, position);
                    const bool left = block == kNone;
                    k[position] =
                        left ? -1
                             : static_cast<std::int32_t>(pools_[window]->store[block].slot[kPrimary]) * scale.scale;
                    v[position] = left ? -1 : k[position] + scale.v_offset;
                }
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------ transfers

TransferBatch BlockManager::take_transfers() {
    const ManagerGuard guard(mutex_);
    TransferBatch out{.ticket = ledger_.take(), .items = {}};
    if (out.ticket == TransferLedger::kNothing) {
        return out;
    }
    const std::vector<Transfer>& items = ledger_.items(out.ticket);
    out.items.reserve(items.size());
    for (const Transfer& item : items) {
        const WindowPool& pool = *pools_[item.window];
        out.items.push_back(
            {item.kind, item.slot_src, item.slot_dst, item.tokens, id_of(pool, item.block), pool.config.window_size});
    }
    return out;
}

void BlockManager::complete(Ticket ticket) {
    const ManagerGuard guard(mutex_);
    for (const Transfer& item : ledger_.end(ticket)) {
        pools_[item.window]->delivered(item);
    }
}

std::vector<RequestId> BlockManager::fail(Ticket ticket) {
    const ManagerGuard guard(mutex_);
    std::vector<std::pair<std::size_t, BlockIndex>> undelivered;
    for (const Transfer& item : ledger_.end(ticket)) {
        if (pools_[item.window]->failed(item)) {
            undelivered.emplace_back(item.window, item.block);
        }
    }
    std::ranges::sort(undelivered);
    std::vector<RequestId> hurt;
    for (const Sequence* sequence : undelivered.empty() ? std::vector<const Sequence*>{} : sequences_.ordered()) {
        bool owns = false;
        for (std::size_t window = 0; window < pools_.size(); ++window) {
            sequence->windows[window].for_each([&](BlockIndex block) {
                owns = owns || std::ranges::binary_search(undelivered, std::pair{window, block});
            });
        }
        if (owns) {
            hurt.push_back(sequence->id());
        }
    }
    return hurt;
}

// ------------------------------------------------------------------------------------------------ upkeep and numbers

void BlockManager::advance_time(std::int64_t now_ms) {
    const ManagerGuard guard(mutex_);
    if (now_ms < now_ms_) {
        throw std::invalid_argument("now_ms is " + std::to_string(now_ms) + ", before " + std::to_string(now_ms_) +
                                    " given earlier; use a monotonic clock");
    }
    if (now_ms > kTimeMaxMs) {
        throw std::invalid_argument("now_ms is " + std::to_string(now_ms) + ": at most " + std::to_string(kTimeMaxMs) +
                                    ", so that durations can be added to it");
    }
    now_ms_ = now_ms;
    for (const auto& pool : pools_) {
        pool->advance_time(now_ms);
    }
}

void BlockManager::refresh_blocks() {
    const ManagerGuard guard(mutex_);
    closed_.add(current_);
    iteration_ = std::exchange(current_, {});
}

void BlockManager::reset_reuse_state() {
    const ManagerGuard guard(mutex_);
    for (const auto& pool : pools_) {
        pool->drop_everything();
    }
}

KvCacheStats BlockManager::get_kv_cache_stats() const {
    const ManagerGuard guard(mutex_);
    KvCacheStats out;
    out.tokens_per_block = config_.tokens_per_block;
    out.total = closed_;
    out.total.add(current_);
    out.iteration = iteration_;
    out.current = current_;
    out.events_dropped = events_.dropped();
    out.sequences = sequences_.size();
    for (const auto& pool : pools_) {
        const WindowStats window = pool->stats();
        out.max_num_blocks += window.primary.blocks;
        out.free_num_blocks += window.primary.free + window.primary.cached;
        out.used_num_blocks += window.primary.owned + window.primary.in_flight;
        out.windows.push_back(window);
    }
    const std::uint64_t looked_up = out.total.blocks_reused + out.total.blocks_missed;
    out.cache_hit_rate =
        looked_up == 0 ? 0 : static_cast<double>(out.total.blocks_reused) / static_cast<double>(looked_up);
    return out;
}

RequestStats BlockManager::get_request_stats(RequestId id) const {
    const ManagerGuard guard(mutex_);
    return sequences_.at(id).stats;
}

std::vector<BlockEvent> BlockManager::get_latest_events() {
    const ManagerGuard guard(mutex_);
    return events_.drain();
}

}  // namespace kvfix
