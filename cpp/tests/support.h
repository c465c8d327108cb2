// Short names for tests of the block manager.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/block_manager.h"

namespace kvfix::testing {

using Tokens = std::vector<TokenId>;

inline constexpr std::uint32_t kTokensPerBlock = 4;

// `count` tokens that no prompt with another `first` contains, if the firsts are a thousand apart.
inline Tokens tokens(std::uint32_t count, TokenId first) {
    Tokens out(count);
    std::iota(out.begin(), out.end(), first);
    return out;
}

inline Tokens joined(Tokens head, const Tokens& tail) {
    head.insert(head.end(), tail.begin(), tail.end());
    return head;
}

struct RequestOptions {
    std::uint32_t beam_width = 1;
    std::optional<std::int64_t> lora_id = std::nullopt;
    Salt salt = {};
    std::vector<ExtraKey> extra_keys = {};
    std::optional<Retention> retention = std::nullopt;
};

inline RequestPtr request(RequestId id, Tokens prompt, RequestOptions options = {}) {
    return std::make_shared<const Request>(id, std::move(prompt), options.beam_width, options.lora_id, options.salt,
                                           std::move(options.extra_keys), std::move(options.retention));
}

// The whole prompt at one priority, optionally for a while.
inline RequestOptions kept_at(Priority priority, std::optional<std::uint32_t> duration_ms = std::nullopt) {
    return {.retention =
                Retention{.ranges = {{0, std::nullopt, priority, duration_ms}}, .decode_duration_ms = std::nullopt}};
}

inline constexpr Secret kSeed{1, 2};

// The hashes that a manager of config() below would compute.
inline std::vector<BlockHash> hashes_of(const Request& request) {
    return block_hashes(request, BlockHasher(kSeed), kTokensPerBlock);
}

inline BlockManagerConfig config(std::uint32_t blocks_primary, std::uint32_t blocks_host = 0) {
    BlockManagerConfig out;
    out.tokens_per_block = kTokensPerBlock;
    out.seed = kSeed;
    out.windows = {{.window_size = std::nullopt, .blocks_primary = blocks_primary, .blocks_host = blocks_host}};
    return out;
}

// The calls that tests make most, with their usual arguments.
class Manager : public BlockManager {
  public:
    using BlockManager::add_sequence_batch;
    using BlockManager::BlockManager;

    BatchAdmission add_batch(const std::vector<RequestPtr>& requests,
                             std::optional<std::uint64_t> tokens_new_max = std::nullopt) {
        return add_sequence_batch(requests, tokens_new_max);
    }
    // `computed`: how many earlier positions have their values in the cache by now. Left out, nothing new is known
    // about that.
    void grow(RequestId id, std::uint32_t count, std::uint32_t computed = 0) {
        add_tokens({&id, 1}, {&count, 1}, std::nullopt, {{&computed, 1}});
    }
    void grow(RequestId id, const Tokens& values, std::uint32_t computed = 0) {
        const auto count = static_cast<std::uint32_t>(values.size());
        add_tokens({&id, 1}, {&count, 1}, values, {{&computed, 1}});
    }
    void remove(RequestId id, std::uint32_t computed = 0) { remove_sequence(id, true, false, std::nullopt, computed); }
    void forget(RequestId id) { remove_sequence(id, false, false, std::nullopt); }

    std::vector<TransferItem> run_transfers() {
        TransferBatch batch = take_transfers();
        complete(batch.ticket);
        return std::move(batch.items);
    }
    // Computes, stores and removes a prompt, so that all of it is cached. Returns the blocks that it held.
    std::vector<BlockId> cache(RequestId id, Tokens prompt, RequestOptions options = {}) {
        const auto length = static_cast<std::uint32_t>(prompt.size());
        add_sequence(request(id, std::move(prompt), std::move(options)));
        run_transfers();
        store_context_blocks(id, length);
        std::vector<BlockId> blocks = held(id);
        remove(id);
        return blocks;
    }
    // Takes every evictable primary block in turn, so that what was cached goes to host if it may.
    void flush_primary(RequestId id) {
        const TierStats primary = get_kv_cache_stats().windows.front().primary;
        const auto blocks = static_cast<std::uint32_t>(primary.free + primary.cached);
        add_sequence(request(id, Tokens(blocks * kTokensPerBlock, -1 + 1'000'000)));
        run_transfers();
        forget(id);
    }

    std::uint64_t reusable(const Tokens& prompt, RequestOptions options = {}) {
        return analyze_prefix_reuse(request(~RequestId{0}, prompt, std::move(options))).tokens;
    }
    std::vector<std::int64_t> ids(RequestId id, WindowSize window = std::nullopt) const {
        return get_batch_cache_block_ids({&id, 1}, window).front().front();
    }
    // The blocks that the sequence holds, in all windows, each once.
    std::vector<BlockId> held(RequestId id) const {
        std::vector<BlockId> out;
        for (const WindowConfig& window : config().windows) {
            const BlockIdTable beams = get_batch_cache_block_ids({&id, 1}, window.window_size).front();
            for (const auto& beam : beams) {
                for (const std::int64_t block : beam) {
                    const auto named = static_cast<BlockId>(block);
                    if (block >= 0 && std::ranges::find(out, named) == out.end()) {
                        out.push_back(named);
                    }
                }
            }
        }
        return out;
    }
    std::vector<BlockId> pin(RequestId id) {
        std::vector<BlockId> blocks = held(id);
        pin_blocks_by_id(blocks);
        return blocks;
    }
    std::vector<std::int32_t> slots(RequestId id) const {
        std::vector<std::int32_t> table(2 * ids(id).size());
        copy_batch_block_offsets({table.data(), 1, 1, table.size() / 2}, {&id, 1}, 1, 0, {});
        table.resize(table.size() / 2);
        return table;
    }
    TierStats primary() const { return get_kv_cache_stats().windows.front().primary; }
    TierStats host() const { return get_kv_cache_stats().windows.front().host; }
};

// The message of the exception of type E that `call` throws, or "" if it throws none.
template <class E, class Call>
std::string message_of(Call&& call) {
    try {
        call();
    } catch (const E& error) {
        return error.what();
    }
    return "";
}

}  // namespace kvfix::testing
