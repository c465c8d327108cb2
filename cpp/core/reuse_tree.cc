#include "core/reuse_tree.h"

#include <algorithm>
#include <compare>
#include <utility>

#include "core/check.h"
#include "core/steps.h"

namespace kvfix {
namespace {

std::uint32_t common_tokens(std::span<const TokenId> a, std::span<const TokenId> b) {
    const auto [at, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    return static_cast<std::uint32_t>(at - a.begin());
}

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

bool equal(const BlockContent& a, const BlockContent& b) {
    return std::ranges::equal(a.tokens, b.tokens) && a.extras == b.extras;
}

}  // namespace

ReuseTree::ReuseTree(BlockStore& store, std::uint32_t hash_bits, const Secret& seed)
    : store_(store),
      key_mask_(hash_bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << hash_bits) - 1),
      index_hash_(seed, store.tokens_per_block()),
      hasher_(seed, hash_bits),
      rank_seed_(key_for(seed, "ranks of children").low),
      index_(store.size()),
      root_by_identity_(0, KeyedHash{key_for(seed, "identities of roots")}) {}

std::uint32_t ReuseTree::rank(BlockIndex block) const {
    std::uint64_t x = (number(block) ^ rank_seed_) * 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93;
    return static_cast<std::uint32_t>(x >> 32);
}

ParentRef ReuseTree::find_root(const std::string& identity) const {
    const auto found = root_by_identity_.find(identity);
    return found == root_by_identity_.end() ? ParentRef() : ParentRef::root(found->second);
}

ParentRef ReuseTree::open_root(const std::string& identity) {
    if (const ParentRef found = find_root(identity); found != kNone) {
        return found;
    }
    if (free_roots_.empty()) {
        free_roots_.push_back(static_cast<std::uint32_t>(roots_.size()));
        roots_.emplace_back();
    }
    const std::uint32_t root = free_roots_.back();
    free_roots_.pop_back();
    roots_[root] = Root{identity, root_key(identity), kNone};
    root_by_identity_.emplace(identity, root);
    if (tenants_) {
        tenants_->add(identity);
    }
    return ParentRef::root(root);
}

std::uint64_t ReuseTree::key_of(ParentRef parent) const {
    return is_root(parent) ? roots_[parent.root_index()].key : store_[parent.block()].key;
}

BlockIndex ReuseTree::find_child(ParentRef parent, std::uint64_t key, const BlockContent& wanted) const {
    return index_.find(IndexHash::scattered(key), [&](BlockIndex block) {
        return store_[block].key == key && store_[block].parent == parent && equal(content(block), wanted);
    });
}

BlockHash ReuseTree::hash_below(ParentRef parent, BlockIndex block) const {
    const BlockHash above = is_root(parent) ? hasher_.root(identity_of(parent)) : (*hash_book_)[parent.block()];
    return hasher_.block(above, store_.content(block), store_.extras(block));
}

std::vector<std::string> ReuseTree::identities_of(std::optional<std::int64_t> lora_id, const Salt& salt) {
    if (!tenants_) {
        tenants_.emplace();
        for (const auto& [identity, root] : root_by_identity_) {  // ordered there, whatever the order here
            tenants_->add(identity);
        }
    }
    return tenants_->find(lora_id, salt);
}

void ReuseTree::keep_hashes() {
    if (hash_book_) {
        return;
    }
    hash_book_.emplace(store_.size());
    std::vector<BlockIndex> blocks;
    for (const Root& root : roots_) {
        collect_children(root.children, blocks);
    }
    for (std::size_t next = 0; next < blocks.size(); ++next) {  // parents before children
        const BlockIndex block = blocks[next];
        if (is_full(block)) {
            hash_book_->enter(block, hash_below(store_[block].parent, block), index_hash_);
            collect_children(store_[block].children, blocks);
        }
    }
}

ReuseTree::Prefix ReuseTree::best_prefix(ParentRef parent, const BlockContent& query) const {
    std::uint32_t longest = 0;
    for (BlockIndex at = children_of(parent); at != kNone;) {
        KVFIX_STEP();
        const BlockContent here = content(at);
        if (here.extras == query.extras) {
            longest = std::max(longest, common_tokens(here.tokens, query.tokens));
        }
        at = compare(here, query) < 0 ? store_[at].child_right : store_[at].child_left;
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
        at = before ? store_[at].child_right : store_[at].child_left;
    }
    return {smallest, longest};
}

void ReuseTree::add(BlockIndex block, ParentRef parent) {
    Block& record = store_[block];
    check(!record.in_tree && record.children == kNone, "a block enters the tree twice");
    record.parent = parent;
    record.in_tree = true;
    insert_child(children_of(parent), block);
    if (is_full(block)) {
        index_.insert(IndexHash::scattered(record.key), block);
        if (hash_book_) {
            hash_book_->enter(block, hash_below(parent, block), index_hash_);
        }
    }
    if (!is_root(parent) && record.has(kPrimary)) {
        ++store_[parent.block()].children_primary;
    }
}

ParentRef ReuseTree::remove(BlockIndex block) {
    Block& record = store_[block];
    check(record.in_tree, "a private block is removed from the tree");
    const ParentRef parent = record.parent;
    erase_child(children_of(parent), block);
    if (is_full(block)) {
        index_.erase(IndexHash::scattered(record.key), block);
        if (hash_book_) {
            hash_book_->leave(block, index_hash_);
        }
    }
    if (!is_root(parent) && record.has(kPrimary)) {
        --store_[parent.block()].children_primary;
    }
    if (is_root(parent) && children_of(parent) == kNone) {
        const std::uint32_t root = parent.root_index();
        root_by_identity_.erase(roots_[root].identity);
        if (tenants_) {
            tenants_->remove(roots_[root].identity);
        }
        free_roots_.push_back(root);
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

void ReuseTree::check_indexed(BlockIndex block) const {
    const Block& record = store_[block];
    if (is_full(block)) {
        check(record.key == child_key(key_of(record.parent), content(block)),
              "a block's key is not that of its content");
        check(find_child(record.parent, record.key, content(block)) == block,
              "a tree block cannot be found, or another in its place");
        check(!hash_book_ || block_hash(block) == hash_below(record.parent, block),
              "a block's hash is not that of its content");
    }
    const BlockIndex left = record.child_left;
    const BlockIndex right = record.child_right;
    check(left == kNone || compare(content(left), content(block)) < 0, "a parent's index of children is out of order");
    check(right == kNone || compare(content(block), content(right)) < 0,
          "a parent's index of children is out of order");
}

void ReuseTree::check_roots(std::vector<std::uint32_t>& seen) const {
    std::vector<BlockIndex> children;
    std::size_t live = 0;
    for (std::uint32_t root = 0; root < roots_.size(); ++root) {
        if (roots_[root].children == kNone) {
            continue;
        }
        ++live;
        check(find_root(roots_[root].identity) == ParentRef::root(root), "a root cannot be found by its identity");
        children.clear();
        collect_children(roots_[root].children, children);
        for (const BlockIndex child : children) {
            check(store_[child].in_tree && store_[child].parent == ParentRef::root(root),
                  "a root's child does not know its root");
            ++seen[number(child)];
        }
    }
    check(live == root_by_identity_.size(), "a root without children is kept, or one with children is lost");
}

void ReuseTree::collect_all(std::vector<BlockIndex>& out) const {
    for (const BlockIndex block : store_.all()) {
        if (store_[block].in_tree) {
            out.push_back(block);
        }
    }
}

}  // namespace kvfix
