// The blocks that can be found again. A node's path from its root spells its whole prefix, so two blocks with equal content
// and the same parent are the same prefix; keys and hashes only speed the search up.
//
// In a window what a block follows may go before it. There every prefix that something follows is a root of its own, known by its
// 128-bit hash: a block's parent, whether or not the block that ends the prefix is there. Nothing hangs below a block.
//
// Every parent keeps its children in an ordered index (a treap threaded through the blocks, ordered by extras, then tokens): the
// child with the longest common prefix stands next to where a query would be inserted.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/block_store.h"
#include "core/hash_book.h"
#include "core/hash_index.h"
#include "core/identity.h"
#include "core/index_hash.h"
#include "core/tenant_index.h"
#include "core/types.h"

namespace kvfix {

constexpr bool is_root(ParentRef parent) { return parent.is_root(); }

// What a block holds, or would hold.
struct BlockContent {
    std::span<const TokenId> tokens;
    std::string_view extras;
};

// The order of a parent's children.
std::strong_ordering compare(const BlockContent& a, const BlockContent& b);

class ReuseTree {
  public:
    // `seed` gives the hashes of blocks and places them in the indexes. A caller that does not know it cannot make them collide.
    ReuseTree(BlockStore& store, std::uint32_t hash_bits, const Secret& seed, bool by_prefix = false);

    // kNone when nothing of this identity is in the tree.
    ParentRef find_root(const Identity& identity) const;
    ParentRef open_root(const Identity& identity);

    // What comes before a block: its hash, and its key in the index.
    struct Prefix {
        BlockHash hash;
        std::uint64_t key = 0;
    };
    bool by_prefix() const { return by_prefix_; }
    // For trees by prefix; the rest is for all.
    Prefix beginning(const Identity& identity) const;
    Prefix behind(const Prefix& prefix, const BlockContent& content) const {
        return {hasher_.block(prefix.hash, content.tokens, content.extras), child_key(prefix.key, content)};
    }
    Prefix behind(BlockIndex block) const { return behind(above_[number(block)], content(block)); }
    // What comes before the block's content, private or not.
    const Prefix& above(BlockIndex block) const { return above_[number(block)]; }
    void set_above(BlockIndex block, const Prefix& prefix) { above_[number(block)] = prefix; }
    // kNone while nothing follows the prefix.
    ParentRef find_prefix(const Prefix& prefix) const;
    ParentRef open_prefix(const Prefix& prefix, const Identity& identity);
    // Prefixes whose last blocks have gone, while something that follows them is there.
    std::uint32_t orphaned() const { return orphaned_; }
    // Of a root, in a tree by prefix; nothing elsewhere.
    Prefix prefix_of(ParentRef parent) const { return by_prefix_ ? roots_[parent.root_index()].prefix : Prefix{}; }

    // The parent of what follows the block: kNone while nothing does, in a tree by prefix.
    ParentRef below(BlockIndex block) const {
        return by_prefix_ ? (next_[number(block)] == kNone ? ParentRef() : ParentRef::root(next_[number(block)]))
                          : ParentRef(block);
    }
    // The parent's block, or kNone if it is a root whose block has gone or never was.
    BlockIndex block_of(ParentRef parent) const {
        return is_root(parent) ? roots_[parent.root_index()].block : parent.block();
    }
    bool has_children(BlockIndex block) const {
        return by_prefix_ ? next_[number(block)] != kNone : store_[block].children != kNone;
    }
    std::uint32_t children_primary(BlockIndex block) const {
        if (!by_prefix_) {
            return store_[block].children_primary;
        }
        return next_[number(block)] == kNone ? 0 : roots_[next_[number(block)]].children_primary;
    }
    // The tree block got a primary slot, or lost it. Its parent's block, if that has no child in primary any more.
    void gain_primary(BlockIndex block) { ++children_primary_of(store_[block].parent); }
    BlockIndex lose_primary(BlockIndex block) {
        const ParentRef parent = store_[block].parent;
        return --children_primary_of(parent) == 0 ? block_of(parent) : BlockIndex{kNone};
    }
    // A key spells a whole prefix in 64 bits, for this tree's index alone. Never shown.
    std::uint64_t root_key(const Identity& identity) const { return beginning(identity).key; }
    std::uint64_t key_of(ParentRef parent) const;
    // What `hash_of(identity)` makes of a root's identity: the same function each time, which is called once for a tenant.
    template <class HashOf>
    const BlockHash& plain_root(ParentRef root, HashOf&& hash_of) const {
        const TenantIndex::Tenant& tenant = *roots_[root.root_index()].tenant;
        if (!tenant.second.plain_root) {
            tenant.second.plain_root = hash_of(tenant.first.text);
        }
        return *tenant.second.plain_root;
    }
    std::uint64_t child_key(std::uint64_t parent_key, const BlockContent& content) const {
        return index_hash_.block(parent_key, content.tokens, content.extras) & key_mask_;
    }

    // How often a block or a root has come or gone. While it stays the same, so does what a look-up finds.
    std::uint64_t changes() const { return changes_; }

    BlockContent content(BlockIndex block) const { return {store_.content(block), store_.extras(block)}; }
    bool holds(BlockIndex block, const BlockContent& wanted) const;
    // The full child of `parent` with this content, or kNone.
    BlockIndex find_child(ParentRef parent, std::uint64_t key, const BlockContent& content) const;
    void prefetch(std::uint64_t key) const { index_.prefetch(IndexHash::scattered(key)); }
    BlockIndex hint(std::uint64_t key) const { return index_.hint(IndexHash::scattered(key)); }

    // From now on the hashes of full blocks are known. The first call computes those of all that are there.
    void keep_hashes();
    // Of a full block in the tree, as it is shown; hashes are kept. And of its parent, if it has one.
    BlockHash block_hash(BlockIndex block) const { return hasher_.shown((*hash_book_)[block]); }
    std::optional<BlockHash> parent_hash(BlockIndex block) const;
    // The only full block under this hash, or kNone if there is none or more than one. Hashes are kept.
    BlockIndex find_unambiguous(const BlockHash& hash) const {
        return hash_book_->find_unambiguous(hash, hasher_, index_hash_);
    }

    struct Beginning {
        BlockIndex block = kNone;
        std::uint32_t tokens = 0;
    };
    // The child with equal extras and the longest common prefix of at least one token; ties go to the smallest content.
    Beginning best_prefix(ParentRef parent, const BlockContent& query) const;

    // The block's tokens, extras and key are set; it becomes a child of `parent`.
    void add(BlockIndex block, ParentRef parent);
    // Unlinks a childless or already emptied block. Returns its parent.
    ParentRef remove(BlockIndex block);
    // Appends all descendants, parents before children.
    void collect_descendants(BlockIndex block, std::vector<BlockIndex>& out) const;
    void collect_all(std::vector<BlockIndex>& out) const;
    void collect_direct_children(BlockIndex block, std::vector<BlockIndex>& out) const;
    // Appends what the roots of that adapter, that salt, or both have for children.
    void collect_tenant(std::optional<std::int64_t> lora_id, const Salt& salt, std::vector<BlockIndex>& out) const;

    // Heap order of the treaps: fixed per block, spread evenly, the same wherever the seed is.
    std::uint32_t rank(BlockIndex block) const;

    // Verifies one tree block's entries in the indexes, and the roots; counts the roots' children in `seen`.
    void check_indexed(BlockIndex block) const;
    void check_roots(std::vector<std::uint32_t>& seen) const;

  private:
    struct Root {
        TenantIndex::Tenant* tenant = nullptr;  // whose it is
        std::uint32_t previous = kNone;         // of his roots
        std::uint32_t next = kNone;
        Prefix prefix;
        BlockIndex children = kNone;
        std::uint32_t children_primary = 0;
        // In a tree by prefix:
        BlockIndex block = kNone;  // the tree block that ends the prefix
        bool first = true;         // nothing comes before
    };

    std::uint32_t& children_primary_of(ParentRef parent) {
        return is_root(parent) ? roots_[parent.root_index()].children_primary : store_[parent.block()].children_primary;
    }
    std::uint32_t new_root(TenantIndex::Tenant& tenant, const Prefix& prefix);
    void close_root(std::uint32_t root);
    void leave_tenant(const Root& root);
    void link_prefix(BlockIndex block);
    BlockIndex find_end(const Prefix& prefix) const;
    void check_prefix(std::uint32_t root) const;
    bool check_tenant(std::uint32_t root) const;
    std::uint64_t place_of(const Prefix& prefix) const {
        return IndexHash::scattered(index_hash_.block_hash(prefix.hash));
    }
    BlockIndex& children_of(ParentRef parent) {
        return is_root(parent) ? roots_[parent.root_index()].children : store_[parent.block()].children;
    }
    BlockIndex children_of(ParentRef parent) const {
        return is_root(parent) ? roots_[parent.root_index()].children : store_[parent.block()].children;
    }
    bool is_full(BlockIndex block) const { return store_[block].num_tokens == store_.tokens_per_block(); }
    BlockHash hash_below(ParentRef parent, BlockIndex block) const;
    void insert_child(BlockIndex& top, BlockIndex block);
    void erase_child(BlockIndex& top, BlockIndex block);
    void split(BlockIndex top, const BlockContent& at, BlockIndex& below, BlockIndex& above);
    BlockIndex merge(BlockIndex below, BlockIndex above);
    void collect_children(BlockIndex top, std::vector<BlockIndex>& out) const;

    BlockStore& store_;
    const std::uint64_t key_mask_;
    const IndexHash index_hash_;
    const BlockHasher hasher_;
    const std::uint64_t rank_seed_;
    const bool by_prefix_;
    HashIndex index_;
    HashIndex roots_by_prefix_;        // roots, not blocks
    std::vector<Prefix> above_;        // [block]
    std::vector<std::uint32_t> next_;  // [block]: the root of what follows it, or kNone
    std::uint32_t orphaned_ = 0;
    std::uint64_t changes_ = 0;
    std::optional<HashBook> hash_book_;
    TenantIndex tenants_;
    std::vector<Root> roots_;
    std::vector<std::uint32_t> free_roots_;
};

}  // namespace kvfix
