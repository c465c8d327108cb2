#include "core/tier_blocks.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace kvfix {

using State = TierBlock::State;

namespace {

// Each is made where it stays: none can move.
template <std::size_t... Number>
std::array<EvictionQueue, kBlockKinds> queues_over(std::uint32_t blocks, std::array<EvictionQueue, kBlockKinds>& all,
                                                   std::index_sequence<Number...> /*behind the first*/) {
    return {EvictionQueue(blocks, kBlockKinds), EvictionQueue::beside(all[0], Number + 1)...};
}

}  // namespace

TierBlocks::TierBlocks(std::uint32_t slots, std::uint32_t tokens_per_block, std::uint32_t hash_bits, const Secret& seed)
    : tokens_per_block_(tokens_per_block),
      key_mask_(hash_bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << hash_bits) - 1),
      index_hash_(seed, tokens_per_block),
      blocks_(slots),
      tokens_(std::size_t{slots} * tokens_per_block),
      free_(slots),
      index_(slots),
      queues_(queues_over(slots, queues_, std::make_index_sequence<kBlockKinds - 1>())),
      root_by_identity_(0, KeyedHash{key_for(seed, "identities of a tier")}) {
    std::iota(free_.rbegin(), free_.rend(), 0U);  // taken from the back: the lowest number goes first
}

// ------------------------------------------------------------------------------------------------ roots and look-ups

TierParent TierBlocks::open_root(const std::string& identity) {
    const auto found = root_by_identity_.find(identity);
    std::uint32_t root = found == root_by_identity_.end() ? kNone : found->second;
    if (root == kNone) {
        if (free_roots_.empty()) {
            free_roots_.push_back(static_cast<std::uint32_t>(roots_.size()));
            roots_.emplace_back();
        }
        root = free_roots_.back();
        free_roots_.pop_back();
        roots_[root] = Root{identity, index_hash_.root(identity) & key_mask_, 0};
        root_by_identity_.emplace(identity, root);
    }
    ++roots_[root].users;
    return root | kTierRootBit;
}

std::string_view TierBlocks::extras(TierSlot block) const {
    return blocks_[block].has_extras ? std::string_view(extras_.at(block)) : std::string_view();
}

BlockContent TierBlocks::content(TierSlot block) const {
    return {{tokens_.data() + std::size_t{block} * tokens_per_block_, tokens_per_block_}, extras(block)};
}

TierSlot TierBlocks::find(TierParent parent, std::uint64_t key, const BlockContent& wanted) const {
    const BlockIndex found_at = index_.find(IndexHash::scattered(key), [&](BlockIndex at) {
        const auto block = static_cast<TierSlot>(at);
        const TierBlock& record = blocks_[block];
        const BlockContent found = content(block);
        return record.key == key && record.parent == parent && std::ranges::equal(found.tokens, wanted.tokens) &&
               found.extras == wanted.extras;
    });
    return static_cast<TierSlot>(found_at);
}

void TierBlocks::hold(TierParent parent) {
    if (is_tier_root(parent)) {
        ++roots_[parent & ~kTierRootBit].users;
    } else {
        ++blocks_[parent].children;
    }
}

void TierBlocks::let_go(TierParent parent) {
    if (!is_tier_root(parent)) {
        if (--blocks_[parent].children == 0) {
            queue_of(parent).unpark(BlockIndex{parent});
        }
        return;
    }
    Root& root = roots_[parent & ~kTierRootBit];
    if (--root.users == 0) {
        root_by_identity_.erase(root.identity);
        root = Root{};
        free_roots_.push_back(parent & ~kTierRootBit);
    }
}

// ------------------------------------------------------------------------------------------------ the life of a block

TierSlot TierBlocks::fill(TierParent parent, std::uint64_t key, const BlockContent& wanted, Priority priority,
                          TierSequenceId writer, AskedBlock asked, TierSlot victim) {
    hold(parent);
    const TierSlot block = take_slot(victim);
    TierBlock& record = blocks_[block];
    record = TierBlock{.key = key,
                       .writer = writer,
                       .parent = parent,
                       .asked_at = asked.at,
                       .generation = record.generation,
                       .priority = priority,
                       .kind = asked.kind,
                       .state = State::filling,
                       .has_extras = !wanted.extras.empty()};
    std::ranges::copy(wanted.tokens, tokens_.begin() + std::ptrdiff_t{block} * tokens_per_block_);
    if (record.has_extras) {
        extras_[block] = wanted.extras;
    }
    index_.insert(IndexHash::scattered(key), BlockIndex{block});
    ++owned_;
    return block;
}

TierSlot TierBlocks::take_slot(TierSlot victim) {
    if (free_.empty()) {
        queue_of(victim).remove(BlockIndex{victim});
        detach(victim);
        release(victim);
        ++evicted_;
    }
    const TierSlot slot = free_.back();
    free_.pop_back();
    return slot;
}

void TierBlocks::note(TierSlot block, AskedBlock asked) {
    TierBlock& record = blocks_[block];
    const bool may_go = queue_of(block).contains(BlockIndex{block});
    if (may_go) {
        queue_of(block).remove(BlockIndex{block});
    }
    record.kind = asked.kind;
    record.asked_at = asked.at;
    if (may_go) {
        queue_of(block).push(BlockIndex{block}, record.priority);
    }
}

void TierBlocks::arrive(TierSlot block) {
    const bool before = is_owned(blocks_[block]);
    blocks_[block].state = State::held;
    note_owned(block, before);
    review(block);
}

void TierBlocks::set_aside(TierSlot block) {
    check(blocks_[block].children == 0, "a block is given up under those that follow it");
    if (blocks_[block].parent != kNone) {
        detach(block);
    }
}

void TierBlocks::abandon(TierSlot block) {
    set_aside(block);
    --owned_;
    release(block);
}

void TierBlocks::detach(TierSlot block) {
    TierBlock& record = blocks_[block];
    if (record.parent != kNone && !is_tier_root(record.parent)) {
        prefetch(blocks_[record.parent].key);  // mostly the next that goes
    }
    index_.erase(IndexHash::scattered(record.key), BlockIndex{block});
    let_go(record.parent);
    record.parent = kNone;
    ++record.generation;
    bad_ -= record.bad ? 1U : 0U;
    record.bad = false;
}

void TierBlocks::release(TierSlot block) {
    TierBlock& record = blocks_[block];
    if (record.has_extras) {
        extras_.erase(block);
    }
    record = TierBlock{.generation = record.generation};
    free_.push_back(block);
}

// Called after any change of state, pins or parent: queues the block, frees it, or does neither.
void TierBlocks::review(TierSlot block) {
    const TierBlock& record = blocks_[block];
    const bool unused = record.state == State::held && record.pins == 0;
    EvictionQueue& queue = queue_of(block);
    if (const bool may_go = unused && record.parent != kNone; may_go != queue.contains(BlockIndex{block})) {
        if (may_go) {
            queue.push(BlockIndex{block}, record.priority);
        } else {
            queue.remove(BlockIndex{block});
        }
    }
    if (unused && record.parent == kNone) {
        release(block);
    }
}

void TierBlocks::note_owned(TierSlot block, bool before) {
    const bool now = is_owned(blocks_[block]);
    owned_ += (now && !before ? 1U : 0U) - (before && !now ? 1U : 0U);
}

void TierBlocks::pin(TierSlot block) {
    const bool before = is_owned(blocks_[block]);
    ++blocks_[block].pins;
    note_owned(block, before);
    review(block);
}

void TierBlocks::unpin(TierSlot block) {
    const bool before = is_owned(blocks_[block]);
    --blocks_[block].pins;
    note_owned(block, before);
    review(block);
}

void TierBlocks::touch(TierSlot block) {
    if (EvictionQueue& queue = queue_of(block); queue.contains(BlockIndex{block})) {
        queue.remove(BlockIndex{block});
        queue.push(BlockIndex{block}, blocks_[block].priority);
    }
}

void TierBlocks::condemn(TierSlot block) {
    if (blocks_[block].parent != kNone && !blocks_[block].bad) {
        blocks_[block].bad = true;
        ++bad_;
    }
}

void TierBlocks::drop_all() {
    std::vector<TierSlot> dropped;
    for (TierSlot block = 0; block < size(); ++block) {
        if (blocks_[block].parent != kNone) {
            dropped.push_back(block);
        }
    }
    for (const TierSlot block : dropped) {
        detach(block);
    }
    for (const TierSlot block : dropped) {
        review(block);
    }
}

// ------------------------------------------------------------------------------------------------ invariants

void TierBlocks::check_invariants() const {
    std::vector<std::uint32_t> followers(blocks_.size());
    std::uint32_t free = 0;
    std::uint32_t owned = 0;
    std::uint32_t bad = 0;
    std::uint32_t queued = 0;
    for (TierSlot block = 0; block < size(); ++block) {
        const TierBlock& record = blocks_[block];
        const bool is_findable = record.parent != kNone;
        free += record.state == State::free ? 1U : 0U;
        owned += is_owned(record) ? 1U : 0U;
        bad += record.bad ? 1U : 0U;
        queued += queue_of(block).contains(BlockIndex{block}) ? 1U : 0U;
        check(queue_of(block).contains(BlockIndex{block}) ==
                  (record.state == State::held && is_findable && record.pins == 0),
              "a block may go and is not queued, or is queued and may not go");
        check(record.state == State::held || record.pins == 0, "a block that holds nothing is pinned");
        check(record.has_extras == extras_.contains(block), "extras are kept of a block without them, or lost");
        if (record.state == State::free) {
            check(!is_findable, "a free slot can be found");
        } else if (!is_findable) {
            check(is_owned(record), "a block that nobody can find and nobody uses keeps its slot");
        } else {
            check(find(record.parent, record.key, content(block)) == block, "a block cannot be found by its content");
            if (!is_tier_root(record.parent)) {
                const TierBlock& parent = blocks_[record.parent];
                check(parent.parent != kNone, "a block follows one that cannot be found");
                check(parent.state == State::held || record.state == State::filling,
                      "a block is held behind one that has not arrived");
                ++followers[record.parent];
            }
        }
    }
    for (TierSlot block = 0; block < size(); ++block) {
        check(blocks_[block].children == followers[block], "a block miscounts those that follow it");
    }
    std::uint32_t in_queues = 0;
    for (const EvictionQueue& queue : queues_) {
        in_queues += queue.size();
    }
    check(free == free_.size() && owned == owned_ && bad == bad_ && queued == in_queues, "the tier miscounts");
}

}  // namespace kvfix
