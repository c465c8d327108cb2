#include "core/reuse_tree.h"

#include <algorithm>
#include <compare>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/steps.h"

namespace kvfix {
namespace {

std::uint32_t common_tokens(std::span<const TokenId> a, std::span<const TokenId> b) {
    const auto [at, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    return static_cast<std::uint32_t>(at - a.begin());
}

}  // namespace

std::strong_ordering compare(const BlockContent& a, const BlockContent& b) {
    if (const auto order = a.extras <=> b.extras; order != 0) {
        return order;
    }
    const std::uint32_t common = common_tokens(a.tokens, b.tokens);
    if (common < a.tokens.size() && common < b.tokens.size()) {
        return a.tokens[common] <=> b.tokens[common];
    }
    return a.tokens.size() <=> b.tokens.size();
}

ReuseTree::ReuseTree(BlockStore& store, std::uint32_t hash_bits, const Secret& seed, bool by_prefix)
    : store_(store),
      key_mask_(hash_bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << hash_bits) - 1),
      index_hash_(seed, store.tokens_per_block()),
      hasher_(seed, hash_bits),
      rank_seed_(key_for(seed, "ranks of children").low),
      by_prefix_(by_prefix),
      index_(store.size()),
      roots_by_prefix_(by_prefix ? store.size() : 0),
      above_(by_prefix ? store.size() : 0),
      next_(above_.size(), kNone),
      further_(store.size(), kNone) {}

std::uint32_t ReuseTree::rank(BlockIndex block) const {
    std::uint64_t x = (number(block) ^ rank_seed_) * 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93;
    return static_cast<std::uint32_t>(x >> 32);
}

ReuseTree::Prefix ReuseTree::beginning(const Identity& identity) const {
    const auto made = identity.hashes(index_hash_.text_key(), [this](const std::string& text) {
        return Identity::Hashes{hasher_.root(text), index_hash_.root(text)};
    });
    return {made.root, made.key & key_mask_};
}

ParentRef ReuseTree::find_root(const Identity& identity) const {
    const Prefix first = beginning(identity);
    if (by_prefix_) {
        return find_prefix(first);
    }
    const TenantIndex::Tenant* found = tenants_.find({identity.text(), first.key});
    return found == nullptr ? ParentRef() : ParentRef::root(found->second.last);
}

ParentRef ReuseTree::open_root(const Identity& identity) {
    if (const ParentRef found = find_root(identity); found != kNone) {
        return found;
    }
    const Prefix first = beginning(identity);
    const std::uint32_t root = new_root(tenants_.open({identity.text(), first.key}), first);
    if (by_prefix_) {
        roots_by_prefix_.insert(place_of(roots_[root].prefix), BlockIndex{root});
    }
    return ParentRef::root(root);
}

std::uint32_t ReuseTree::new_root(TenantIndex::Tenant& tenant, const Prefix& prefix) {
    if (free_roots_.empty()) {
        free_roots_.push_back(static_cast<std::uint32_t>(roots_.size()));
        roots_.emplace_back();
    }
    const std::uint32_t root = free_roots_.back();
    free_roots_.pop_back();
    roots_[root] = Root{.tenant = &tenant, .prefix = prefix};
    ++tenant.second.count;
    tenant.second.last = root;
    return root;
}

std::uint64_t ReuseTree::key_of(ParentRef parent) const {
    return is_root(parent) ? roots_[parent.root_index()].prefix.key : std::as_const(store_)[parent.block()].key;
}

bool ReuseTree::holds(BlockIndex block, const BlockContent& wanted) const {
    const std::span<const TokenId> tokens = std::as_const(store_).content(block);
    return tokens.size() == wanted.tokens.size() &&
           std::memcmp(tokens.data(), wanted.tokens.data(), tokens.size_bytes()) == 0 &&
           store_.extras(block) == wanted.extras;
}

BlockIndex ReuseTree::find_child(ParentRef parent, std::uint64_t key, const BlockContent& wanted) const {
    const BlockStore& store = store_;  // a const reference, because access to a mutable record marks it as changed
    return index_.find(IndexHash::scattered(key), [&](BlockIndex block) {
        return store[block].key == key && store[block].parent == parent && holds(block, wanted);
    });
}

BlockHash ReuseTree::hash_below(ParentRef parent, BlockIndex block) const {
    if (by_prefix_) {
        return behind(block).hash;
    }
    const BlockHash above = is_root(parent) ? roots_[parent.root_index()].prefix.hash : hashes_[number(parent.block())];
    return hasher_.block(above, store_.content(block), store_.extras(block));
}

void ReuseTree::keep_hashes() {
    check(tenants_.size() == 0, "hashes are kept of some blocks and not of others");
    hashes_.resize(store_.size());
}

ReuseTree::Beginning ReuseTree::best_prefix(ParentRef parent, const BlockContent& query) const {
    const BlockStore& store = store_;
    std::uint32_t longest = 0;
    for (BlockIndex at = children_of(parent); at != kNone;) {
        KVFIX_STEP();
        const BlockContent here = content(at);
        if (here.extras == query.extras) {
            longest = std::max(longest, common_tokens(here.tokens, query.tokens));
        }
        at = compare(here, query) < 0 ? store[at].child_right : store[at].child_left;
    }
    if (longest == 0) {
        return {};
    }
    const BlockContent prefix{query.tokens.first(longest), query.extras};
    BlockIndex smallest = kNone;
    for (BlockIndex at = children_of(parent); at != kNone;) {
        KVFIX_STEP();
        const bool before = compare(content(at), prefix) < 0;
        smallest = before ? smallest : at;
        at = before ? store[at].child_right : store[at].child_left;
    }
    return {smallest, longest};
}

void ReuseTree::add(BlockIndex block, ParentRef parent) {
    Block& record = store_[block];
    check(!record.in_tree && record.children == kNone, "a block enters the tree twice");
    ++changes_;
    record.parent = parent;
    record.in_tree = true;
    insert_child(children_of(parent), block);
    if (is_full(block)) {
        index_.insert(IndexHash::scattered(record.key), block);
        if (!hashes_.empty()) {
            hashes_[number(block)] = hash_below(parent, block);
        }
    }
    if (record.has(kPrimary)) {
        ++children_primary_of(parent);
    }
    if (by_prefix_ && is_full(block)) {
        link_prefix(block);
    }
}

ParentRef ReuseTree::remove(BlockIndex block) {
    Block& record = store_[block];
    check(record.in_tree, "a private block is removed from the tree");
    ++changes_;
    const ParentRef parent = record.parent;
    erase_child(children_of(parent), block);
    if (is_full(block)) {
        index_.erase(IndexHash::scattered(record.key), block);
    }
    if (record.has(kPrimary)) {
        --children_primary_of(parent);
    }
    if (is_root(parent) && children_of(parent) == kNone) {
        close_root(parent.root_index());
    }
    if (by_prefix_ && next_[number(block)] != kNone) {
        roots_[std::exchange(next_[number(block)], kNone)].block = kNone;
        ++orphaned_;
    }
    record.in_tree = false;
    record.parent = kNone;
    ++record.generation;
    return parent;
}

void ReuseTree::insert_child(BlockIndex& top, BlockIndex block) {
    BlockIndex* at = &top;
    const BlockContent key = content(block);
    while (*at != kNone && rank(*at) >= rank(block)) {
        KVFIX_STEP();
        at = compare(content(*at), key) < 0 ? &store_[*at].child_right : &store_[*at].child_left;
    }
    Block& record = store_[block];
    split(*at, key, record.child_left, record.child_right);
    *at = block;
}

void ReuseTree::split(BlockIndex top, const BlockContent& key, BlockIndex& below, BlockIndex& above) {
    BlockIndex* low = &below;
    BlockIndex* high = &above;
    while (top != kNone) {
        if (compare(content(top), key) < 0) {
            *low = top;
            low = &store_[top].child_right;
            top = *low;
        } else {
            *high = top;
            high = &store_[top].child_left;
            top = *high;
        }
    }
    *low = *high = kNone;
}

void ReuseTree::erase_child(BlockIndex& top, BlockIndex block) {
    BlockIndex* at = &top;
    if (*at != block) {
        const BlockContent key = content(block);
        while (*at != block) {
            KVFIX_STEP();
            check(*at != kNone, "a child is missing from its parent's index");
            at = compare(content(*at), key) < 0 ? &store_[*at].child_right : &store_[*at].child_left;
        }
    }
    *at = merge(store_[block].child_left, store_[block].child_right);
    store_[block].child_left = store_[block].child_right = kNone;
}

BlockIndex ReuseTree::merge(BlockIndex below, BlockIndex above) {
    BlockIndex top = kNone;
    BlockIndex* at = &top;
    while (below != kNone && above != kNone) {
        if (rank(below) >= rank(above)) {
            *at = below;
            at = &store_[below].child_right;
            below = *at;
        } else {
            *at = above;
            at = &store_[above].child_left;
            above = *at;
        }
    }
    *at = below != kNone ? below : above;
    return top;
}

void ReuseTree::collect_children(BlockIndex top, std::vector<BlockIndex>& out) const {
    std::vector<BlockIndex> pending;
    while (top != kNone || !pending.empty()) {
        for (; top != kNone; top = store_[top].child_left) {
            pending.push_back(top);
        }
        out.push_back(pending.back());
        top = store_[pending.back()].child_right;
        pending.pop_back();
    }
}

void ReuseTree::collect_descendants(BlockIndex block, std::vector<BlockIndex>& out) const {
    std::size_t next = out.size();
    collect_children(store_[block].children, out);
    for (; next < out.size(); ++next) {
        collect_children(store_[out[next]].children, out);
    }
}

void ReuseTree::collect_direct_children(BlockIndex block, std::vector<BlockIndex>& out) const {
    collect_children(store_[block].children, out);
}

}  // namespace kvfix
