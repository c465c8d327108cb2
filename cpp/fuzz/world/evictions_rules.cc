// The rules of docs/block-manager.md, section 6, in plain lists: which block goes, and what goes with it.
#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "fuzz/world/broken.h"
#include "fuzz/world/evictions.h"

namespace kvfix::world {
namespace {

std::uint64_t key_of(const std::vector<TokenId>& path) {
    std::uint64_t key = 0;
    for (const TokenId block : path) {
        key = (key ^ (static_cast<std::uint64_t>(block) + 1)) * 0x9E3779B97F4A7C15U;  // 0 behind 0 would stay 0
        key ^= key >> 29;
    }
    return key;
}

}  // namespace

std::vector<Evictions::BlockPtr> Evictions::found(const Path& path) const {
    std::vector<BlockPtr> blocks;
    for (std::size_t length = 1; length <= path.size(); ++length) {
        const auto at = tree_.find(Path(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(length)));
        if (at == tree_.end()) {
            break;
        }
        blocks.push_back(at->second);
    }
    return blocks;
}

bool Evictions::has_child(const Block& block, bool in_primary) const {
    return std::ranges::any_of(tree_, [&](const auto& each) {
        const auto& [path, other] = each;
        return path.size() == block.path.size() + 1 && std::equal(block.path.begin(), block.path.end(), path.begin()) &&
               (other->primary || !in_primary);
    });
}

// The lowest priority goes first, then the one that has waited longest.
template <class May, class Since>
Evictions::BlockPtr Evictions::first_of(May&& may, Since&& since) const {
    BlockPtr first;
    for (const auto& [path, block] : tree_) {
        const auto rank = [&](const BlockPtr& one) { return std::tuple(one->priority, since(*one)); };
        if (may(*block) && (first == nullptr || rank(block) < rank(first))) {
            first = block;
        }
    }
    return first;
}

void Evictions::take_primary_slot() {
    if (primary_free_ == 0) {
        evict_primary();
    }
    promise(primary_free_ != 0, "the oracle finds no victim");
    --primary_free_;
}

void Evictions::evict_primary() {
    const auto since = [](const Block& block) { return block.cached_at; };
    BlockPtr victim = first_of([&](const Block& block) { return block.cached() && !has_child(block, true); }, since);
    if (victim == nullptr) {
        victim = first_of([](const Block& block) { return block.cached(); }, since);
    }
    promise(victim != nullptr, "the oracle has nothing cached left");
    if (!victim->host) {
        const bool down = victim->priority >= manager_.config().offload_priority_min;
        if (!down || !take_host_slot(*victim)) {
            return drop(victim);
        }
        if (!victim->in_tree) {  // it was dropped with an ancestor, to make room
            ++host_free_;
            return;
        }
        victim->host = true;
        victim->copying = true;
        copies_.push_back(victim);
    }
    victim->primary = false;
    victim->host_since = ++clock_;
    ++primary_free_;
    going_.push_back({.to_host = true, .blocks = {victim->path}});
}

template <class Alone>
bool Evictions::newcomers_have_enough(Alone&& alone) const {
    const auto others =
        std::ranges::count_if(tree_, [&](const auto& each) { return alone(*each.second) && each.second->asked_again; });
    return newcomers_.leave_enough(static_cast<std::uint32_t>(others));
}

template <class Alone>
Evictions::BlockPtr Evictions::host_victim(Alone&& alone) const {
    const auto since = [](const Block& block) { return block.host_since; };
    const auto first = [&](bool newcomer, bool leaf) {
        return first_of(
            [&](const Block& block) {
                return alone(block) && (adaptive() && !block.asked_again) == newcomer &&
                       (!leaf || !has_child(block, false));
            },
            since);
    };
    for (const bool leaf : {true, false}) {
        const BlockPtr known = first(false, leaf);
        const BlockPtr newcomer = first(true, leaf);
        if (known == nullptr || newcomer == nullptr) {
            if (known != nullptr || newcomer != nullptr) {
                return known == nullptr ? newcomer : known;
            }
            continue;
        }
        if (known->priority != newcomer->priority) {
            return known->priority < newcomer->priority ? known : newcomer;
        }
        return newcomers_have_enough(alone) ? newcomer : known;
    }
    return nullptr;
}

bool Evictions::take_host_slot(const Block& evicted) {
    if (host_free_ == 0) {
        const auto since = [](const Block& block) { return block.host_since; };
        const auto settled = [](const Block& block) { return block.host && !block.copying; };
        const auto alone = [&](const Block& block) { return settled(block) && !block.primary && block.owners == 0; };
        if (const BlockPtr copy =
                first_of([&](const Block& block) { return settled(block) && block.primary; }, since)) {
            copy->host = false;
            ++host_free_;
        } else {
            const BlockPtr victim = host_victim(alone);
            const auto may_enter = [&] {
                return newcomers_.may_enter() && !(victim->asked_again && newcomers_have_enough(alone));
            };
            if (victim != nullptr &&
                (!adaptive() || evicted.asked_again || evicted.priority > victim->priority || may_enter())) {
                drop(victim);
            }
        }
    }
    if (host_free_ == 0) {
        return false;
    }
    --host_free_;
    return true;
}

void Evictions::drop(const BlockPtr& block) {
    std::vector<BlockPtr> out = take_out(block);
    const auto turn = [](const BlockPtr& each) { return std::tuple(each->path.size(), each->path); };
    std::ranges::sort(out, std::ranges::greater(), turn);  // the longest first, and the last first among equals
    for (const BlockPtr& each : out) {
        const Path& path = each->path;
        if (!gone_.contains(path) && gone_.size() == gone_max_) {
            gone_before_ = std::exchange(gone_, {});
        }
        gone_.insert(path);
        newcomers_.note_gone(key_of(path), each->asked_again);
    }
}

// With everything below it. A block that is held continues as the holder's own.
std::vector<Evictions::BlockPtr> Evictions::take_out(const BlockPtr& block) {
    Going gone{.to_host = false, .blocks = {}};
    std::vector<BlockPtr> out;
    const Path top = block->path;
    for (auto at = tree_.lower_bound(top); at != tree_.end();) {
        const Path& path = at->first;
        if (path.size() < top.size() || !std::equal(top.begin(), top.end(), path.begin())) {
            break;
        }
        gone.blocks.insert(path);
        Block& each = *out.emplace_back(at->second);
        const bool was_cached = each.cached();
        each.in_tree = false;
        if (was_cached) {
            each.primary = false;
            ++primary_free_;
        }
        if (each.host && !each.copying) {
            each.host = false;
            ++host_free_;
        }
        at = tree_.erase(at);
    }
    going_.push_back(std::move(gone));
    return out;
}

void Evictions::enter(const Live& live) {
    for (std::size_t i = 0; i < live.path.size(); ++i) {
        const BlockPtr& block = live.blocks[i];
        if (tree_.try_emplace(block->path, block).second) {
            block->in_tree = true;
            block->asked_again = was_here(block->path);
            newcomers_.note_missed(key_of(block->path));
        }
    }
}

void Evictions::let_go(const BlockPtr& block) {
    if (block->owners != 0 || block->pins != 0) {
        return;
    }
    if (block->in_tree) {
        block->cached_at = ++clock_;
    } else {
        block->primary = false;
        ++primary_free_;
    }
}

void Evictions::run_copies() {
    manager_.complete(manager_.take_transfers().ticket);
    for (const BlockPtr& block : std::exchange(copies_, {})) {
        block->copying = false;
        block->host_since = ++clock_;
        if (!block->in_tree) {
            block->host = false;
            ++host_free_;
        }
    }
}

}  // namespace kvfix::world
