#include <algorithm>

#include "manager.h"

namespace bound {

void Core::allocate_pools(bool use_uvm) {
    calls.note("allocate_pools", use_uvm);
    const nb::gil_scoped_acquire gil;
    pools.allocate();
}

void Core::release_pools() {
    calls.note("release_pools");
    const nb::gil_scoped_acquire gil;
    pools.release();
}

void Core::start_scheduling() {
    calls.note("start_scheduling");
    books.start_scheduling();
}

void Core::add_token(RequestId id) {
    calls.note("add_token", id);
    books.add_token(id);
}

void Core::add_token_late(RequestId id, bool detach) {
    calls.note("add_token", id, detach);
    books.add_token(id);
}

void Core::pin_blocks(RequestId id) {
    calls.note("pin_blocks", id);
    books.pin(id);
}

void Core::unpin_blocks(const std::variant<int, std::vector<int>>& which) {
    if (const auto* ids = std::get_if<std::vector<int>>(&which)) {
        calls.note("unpin_blocks_by_id", *ids);
        if (!books.rules().pins_by_list()) throw nb::type_error("unpin_blocks_by_id takes one id in this era");
        books.unpin(*ids);
        return;
    }
    const int id = std::get<int>(which);
    calls.note("unpin_blocks_by_id", id);
    if (books.rules().pins_by_list()) throw nb::type_error("unpin_blocks_by_id takes a list of ids in this era");
    books.unpin_chain(id);
}

void Core::rewind(RequestId id, int tokens) {
    calls.note("rewind_kv_cache", id, tokens);
    books.rewind(id, tokens);
}

void Core::scheduling_remove(RequestId id) {
    calls.note("scheduling_remove_sequence", id);
    books.scheduling_remove(id);
}

bool Core::scheduling_has_free(int blocks, int window) {
    calls.note("scheduling_has_free_blocks", blocks, window);
    return books.scheduling_has_free(blocks, window);
}

int Core::copy_offsets(const nb::ndarray<>& table, int row, RequestId id) {
    calls.note("copy_block_offsets", "<tensor>", row, id);
    return pools.copy_offsets(table, row, id);
}

int Core::copy_offsets_late(const nb::ndarray<>& table, int row, RequestId id, bool cyclic, bool context) {
    calls.note("copy_block_offsets", "<tensor>", row, id, cyclic, context);
    return pools.copy_offsets(table, row, id);
}

void Core::copy_batch(const nb::ndarray<>& table, const std::vector<RequestId>& ids, int beams, int offset) {
    calls.note("copy_batch_block_offsets", "<tensor>", ids, beams, offset);
    for (std::size_t i = 0; i < ids.size(); ++i) pools.copy_offsets(table, offset + int(i) * beams, ids[i]);
}

void Core::copy_batch_late(const nb::ndarray<>& table, const std::vector<RequestId>& ids, int beams, int offset,
                           bool cyclic, bool context) {
    calls.note("copy_batch_block_offsets", "<tensor>", ids, beams, offset, cyclic, context);
    for (std::size_t i = 0; i < ids.size(); ++i) pools.copy_offsets(table, offset + int(i) * beams, ids[i]);
}

void Core::offsets_of_batch(const nb::ndarray<>& table, int first, int count, int beams) {
    calls.note("get_block_offsets_of_batch", "<tensor>", first, count, beams);
    for (int i = 0; i < count; ++i) pools.copy_offsets(table, i * beams, RequestId(first + i));
}

CacheBlockIds Core::block_ids(RequestId id, int window) {
    calls.note("get_cache_block_ids", id, window);
    const auto ids = books.block_ids(id, window);
    return CacheBlockIds(ids.begin(), ids.end());
}

std::vector<CacheBlockIds> Core::batch_block_ids(const std::vector<RequestId>& ids, int window) {
    calls.note("get_batch_cache_block_ids", ids, window);
    std::vector<CacheBlockIds> answer;
    for (RequestId id : ids) {
        const auto blocks = books.block_ids(id, window);
        answer.emplace_back(blocks.begin(), blocks.end());
    }
    return answer;
}

std::vector<int> Core::latest_events(std::optional<double>) {
    calls.note("get_latest_events");
    return {};
}

void Core::flush_events() { calls.note("flush_iteration_events"); }

void Core::sync_transfers() { calls.note("sync_transfer_manager_with_buffer_manager"); }

void Core::refresh_blocks() { calls.note("refresh_blocks"); }

void Core::reset_reuse() {
    calls.note("reset_reuse_state");
    books.reset_reuse();
}

int Core::last_block_id(RequestId id) {
    calls.note("get_last_block_id", id);
    return books.last_block_id(id);
}

int Core::priority_by_block(int block, int window) {
    calls.note("get_priority_by_block_id", block, window);
    return books.priority_of(block, window);
}

int Core::token_count(RequestId id) {
    calls.note("get_token_count", id);
    return books.token_count(id);
}

int Core::max_num_blocks() const {
    int sum = 0;
    for (const auto& [size, window] : books.windows()) sum += window->primary();
    return sum;
}

CacheStats Core::stats() {
    calls.note("get_kv_cache_stats");
    const CacheCounts counts = books.counts();
    CacheStats answer;
    answer.max_num_blocks = max_num_blocks();
    for (const auto& [size, window] : books.windows()) {
        answer.free_num_blocks += window->free_blocks();
        answer.num_free_blocks_per_window_size[size] = window->free_blocks();
    }
    answer.used_num_blocks = answer.max_num_blocks - answer.free_num_blocks;
    answer.tokens_per_block = tokens_per_block();
    answer.alloc_total_blocks = counts.alloc_total;
    answer.alloc_new_blocks = counts.alloc_new;
    answer.reused_blocks = counts.reused;
    answer.missed_blocks = counts.missed;
    answer.cache_hit_rate = counts.hit_rate();
    answer.allocated_bytes = pools.bytes();
    return answer;
}

std::map<int, IterationStats> Core::iteration_stats() {
    calls.note("get_iteration_stats");
    std::map<int, IterationStats> answer;
    const CacheCounts now = books.counts();
    for (const auto& [size, window] : books.windows()) {
        IterationStats& mine = answer[size];
        mine.primary_max_num_blocks = window->primary();
        mine.primary_free_num_blocks = window->free_blocks();
        mine.primary_used_num_blocks = window->primary() - window->free_blocks();
        mine.secondary_max_num_blocks = window->host();
        mine.secondary_free_num_blocks = window->free_host_blocks();
        mine.secondary_used_num_blocks = window->host() - window->free_host_blocks();
    }
    // Counts since the last call. They are kept for all windows together and shown under the first.
    IterationStats& first = answer.begin()->second;
    first.iter_alloc_total_blocks = now.alloc_total - seen_.alloc_total;
    first.iter_alloc_new_blocks = now.alloc_new - seen_.alloc_new;
    first.iter_reused_blocks = now.reused - seen_.reused;
    first.iter_missed_blocks = now.missed - seen_.missed;
    seen_ = now;
    return answer;
}

nb::object Core::pool_pointers() {
    calls.note("get_block_pool_pointers");
    const nb::gil_scoped_acquire gil;
    return pools.pointers();
}

nb::object Core::scale_pool_pointers() {
    calls.note("get_block_scale_pool_pointers");
    const nb::gil_scoped_acquire gil;
    return pools.scale_pointers();
}

nb::object Core::layer_mapping() {
    calls.note("get_layer_to_pool_mapping");
    const nb::gil_scoped_acquire gil;
    return pools.layer_mapping();
}

nb::object Core::primary_pool_data(int layer) {
    calls.note("get_primary_pool_data", layer);
    const nb::gil_scoped_acquire gil;
    return pools.primary_of(layer);
}

nb::object Core::unique_primary_pool() {
    calls.note("get_unique_primary_pool");
    const nb::gil_scoped_acquire gil;
    return pools.unique_primary();
}

nb::object Core::no_such_pool() {
    check(false, "there is no pool of this kind");
    return {};
}

nb::object Core::no_such_layer(int) { return no_such_pool(); }

std::vector<std::tuple<std::string, int, int, int, std::vector<Token>>> Core::witness_transfers() {
    std::vector<std::tuple<std::string, int, int, int, std::vector<Token>>> answer;
    for (Transfer& transfer : books.take_transfers()) {
        answer.emplace_back(transfer.kind, transfer.window, transfer.source, transfer.target,
                            std::move(transfer.tokens));
    }
    return answer;
}

int Core::witness_free(int window) { return books.window(window).free_blocks(); }

}  // namespace bound
