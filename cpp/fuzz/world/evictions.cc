#include "fuzz/world/evictions.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "fuzz/world/broken.h"

namespace kvfix::world {
namespace {

constexpr std::uint32_t kBlockTokens = 2;
constexpr TokenId kFilling = 7;

BlockManagerConfig small_config(Random& random) {
    BlockManagerConfig config;
    config.tokens_per_block = kBlockTokens;
    const std::uint32_t host = random.one_in(3) ? 0 : random.between(1, 16);
    config.windows = {{std::nullopt, random.between(6, 24), host}};
    config.partial_reuse = false;
    config.offload_priority_min = random.pick(std::vector<Priority>{0, 30, 40});
    if (host != 0 && random.one_in(2)) {
        config.host_admission = HostAdmission::adaptive;
    }
    config.events_max = 1U << 20;
    config.seed = {random.word(), random.word()};
    return config;
}

std::vector<TokenId> tokens_of(const std::vector<TokenId>& path) {
    std::vector<TokenId> tokens;
    for (const TokenId block : path) {
        tokens.insert(tokens.end(), {block, kFilling});
    }
    tokens.push_back(kFilling);
    return tokens;
}

std::string name(const std::vector<TokenId>& path) {
    std::string out;
    for (const TokenId block : path) {
        out += (out.empty() ? "" : "-") + std::to_string(block);
    }
    return out;
}

}  // namespace

Evictions::Evictions(std::uint64_t seed)
    : random_(seed),
      manager_(small_config(random_)),
      primary_free_(manager_.config().windows.front().blocks_primary),
      host_free_(manager_.config().windows.front().blocks_host),
      gone_max_(primary_free_ + host_free_),
      newcomers_(static_cast<std::uint32_t>(host_free_)) {}

void Evictions::step() {
    switch (random_.below(16)) {
        case 0:
            pin();
            break;
        case 1:
        case 2:
            unpin();
            break;
        case 3:
        case 4:
            if (!live_.empty()) {
                store(std::next(live_.begin(), random_.below(live_.size()))->first);
            }
            break;
        case 5:
        case 6:
        case 7:
        case 8:
        case 9:
            remove();
            break;
        case 10:
            if (random_.one_in(16)) {
                reset();
            }
            break;
        default:
            admit();
    }
    run_copies();
    expect_events();
}

// ------------------------------------------------------------------------------------------------ calls

void Evictions::admit() {
    Live live;
    live.path.resize(random_.between(1, 5));
    std::ranges::generate(live.path, [&] { return static_cast<TokenId>(random_.below(3)); });
    Priorities wanted(live.path.size() + 1);
    Retention retention;
    for (std::uint32_t block = 0; block < wanted.size(); ++block) {
        if (random_.one_in(2)) {
            wanted[block] = random_.pick(std::vector<Priority>{0, 20, 35, 35, 50, 100});
            const std::uint32_t begin = block * kBlockTokens;
            retention.ranges.push_back({begin, begin + kBlockTokens, *wanted[block], std::nullopt});
        }
    }
    const RequestId id = next_id_++;
    const auto request = std::make_shared<const Request>(id, tokens_of(live.path), 1, std::nullopt, Salt(),
                                                         std::vector<ExtraKey>(), retention);
    const std::vector<BlockPtr> reused = found(live.path);
    const bool fits = has_room(reused, wanted.size());
    try {
        manager_.add_sequence(request);
    } catch (const OutOfBlocks&) {
        promise(!fits, "a prompt is refused that fits");
        return;
    }
    promise(fits, "a prompt is admitted that does not fit");
    take_blocks(live, reused, wanted);
    live_.emplace(id, std::move(live));
}

bool Evictions::has_room(const std::vector<BlockPtr>& reused, std::size_t blocks) const {
    const auto is_cached = [](const BlockPtr& block) { return block->cached(); };
    const auto in_host = [](const BlockPtr& block) { return !block->primary; };
    std::uint64_t there = primary_free_;
    for (const auto& [path, block] : tree_) {
        there += block->cached() ? 1 : 0;
    }
    there -= static_cast<std::uint64_t>(std::ranges::count_if(reused, is_cached));
    const std::uint64_t onboarded = static_cast<std::uint64_t>(std::ranges::count_if(reused, in_host));
    return blocks - reused.size() + onboarded <= there;
}

void Evictions::take_blocks(Live& live, const std::vector<BlockPtr>& reused, const Priorities& wanted) {
    for (std::size_t i = 0; i < reused.size(); ++i) {
        Block& block = *reused[i];
        ++block.owners;
        block.asked_again = true;
        if (wanted[i] && *wanted[i] != block.priority) {
            block.priority = *wanted[i];
            block.host_since = ++clock_;
        }
    }
    for (const BlockPtr& block : reused) {
        if (!block->primary) {
            block->copying = true;
            take_primary_slot();
            block->primary = true;
            copies_.push_back(block);
        }
    }
    live.blocks = reused;
    while (live.blocks.size() < wanted.size()) {
        take_primary_slot();
        Block fresh;
        fresh.path.assign(live.path.begin(), live.path.begin() + std::min<std::ptrdiff_t>(std::ssize(live.blocks) + 1,
                                                                                          std::ssize(live.path)));
        fresh.priority = wanted[live.blocks.size()].value_or(kPriorityDefault);
        fresh.owners = 1;
        live.blocks.push_back(std::make_shared<Block>(std::move(fresh)));
    }
}

void Evictions::store(RequestId id) {
    const Live& live = live_.at(id);
    manager_.store_context_blocks(id, static_cast<std::uint32_t>(live.path.size()) * kBlockTokens + 1);
    enter(live);
}

void Evictions::remove() {
    if (live_.empty()) {
        return;
    }
    const auto at = std::next(live_.begin(), random_.below(live_.size()));
    const bool stores = !random_.one_in(6);
    const auto computed = static_cast<std::uint32_t>(at->second.path.size()) * kBlockTokens + 1;
    manager_.remove_sequence(at->first, stores, false, std::nullopt, computed);
    if (stores) {
        enter(at->second);
    }
    for (auto block = at->second.blocks.rbegin(); block != at->second.blocks.rend(); ++block) {
        --(*block)->owners;
        let_go(*block);
    }
    live_.erase(at);
}

void Evictions::pin() {
    if (live_.empty()) {
        return;
    }
    const auto& [id, live] = *std::next(live_.begin(), random_.below(live_.size()));
    const std::vector<std::int64_t> ids = manager_.get_batch_cache_block_ids({&id, 1}, std::nullopt).front().front();
    promise(ids.size() == live.blocks.size(), "a request holds another number of blocks");
    Pinned pinned{.ids = {}, .blocks = live.blocks};
    for (std::size_t i = 0; i < live.blocks.size(); ++i) {
        pinned.ids.push_back(static_cast<BlockId>(ids[i]));
        ++live.blocks[i]->pins;
    }
    manager_.pin_blocks_by_id(pinned.ids);
    pinned_.push_back(std::move(pinned));
}

void Evictions::unpin() {
    if (pinned_.empty()) {
        return;
    }
    const auto at = pinned_.begin() + random_.below(pinned_.size());
    manager_.unpin_blocks_by_id(at->ids, Tier::primary);
    for (const BlockPtr& block : at->blocks) {
        --block->pins;
        let_go(block);
    }
    pinned_.erase(at);
}

void Evictions::reset() {
    manager_.reset_reuse_state();
    while (!tree_.empty()) {
        const BlockPtr first = tree_.begin()->second;
        take_out(first);
    }
    if (going_.empty()) {
        return;
    }
    Going all{.to_host = false, .blocks = {}};
    for (Going& each : going_) {
        all.blocks.merge(each.blocks);
    }
    going_ = {std::move(all)};
}

// ------------------------------------------------------------------------------------------------ what events say

void Evictions::expect_events() {
    auto expected = going_.begin();
    for (const BlockEvent& event : manager_.get_latest_events()) {
        if (event.kind == EventKind::stored) {
            Path path = event.parent_hash ? told_.at(*event.parent_hash).path : Path();
            path.push_back(event.tokens.front());
            told_[event.block_hash] = {std::move(path), event.tier == Tier::primary};
            continue;
        }
        Told& told = told_.at(event.block_hash);
        const bool left = told.primary && event.tier == Tier::host;
        told.primary = event.tier == Tier::primary;
        if (event.kind == EventKind::updated && !left) {
            continue;
        }
        ++seen_;
        promise(expected != going_.end(), [&] { return "block " + name(told.path) + " goes, and nothing had to"; });
        const bool right =
            expected->to_host == (event.kind == EventKind::updated) && expected->blocks.erase(told.path) != 0;
        promise(right, [&] {
            return "block " + name(told.path) + " goes, and it was the turn of " +
                   (expected->blocks.empty() ? "none" : name(*expected->blocks.begin()));
        });
        if (event.kind == EventKind::removed) {
            told_.erase(event.block_hash);
        }
        expected += expected->blocks.empty() ? 1 : 0;
    }
    promise(expected == going_.end(), [&] { return "block " + name(*expected->blocks.begin()) + " had to go"; });
    going_.clear();
}

}  // namespace kvfix::world
