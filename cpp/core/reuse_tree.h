// The blocks that can be found again. The path from a root to a node spells the node's whole prefix, so two blocks with
// equal content and the same parent are the same prefix. Keys and hashes only speed up the search.
//
// In a window, the blocks that a block follows may go before it. There, every prefix that some block follows is a root
// of its own, known by its 128-bit hash. That root is the block's parent, whether or not the block that ends the prefix
// is present. Nothing hangs below a block.
//
// Every parent keeps its children in an ordered index (a treap threaded through the blocks, ordered by extras, then by
// tokens): the child with the longest common prefix stands next to where a query would be inserted.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/block_store.h"
#include "core/hash_index.h"
#include "core/identity.h"
#include "core/index_hash.h"
#include "core/prefetch.h"
#include "core/tenant_index.h"
#include "core/types.h"

namespace kvfix {

constexpr bool is_root(ParentRef parent) { return parent.is_root(); }

// The content that a block holds, or would hold.
struct BlockContent {
    std::span<const TokenId> tokens;
    std::string_view extras;
};

// The order of a parent's children.
std::strong_ordering compare(const BlockContent& a, const BlockContent& b);

class ReuseTree {
  public:
    // `seed` keys the hashes of blocks and the indexes. A caller that does not know it cannot make blocks collide.
    ReuseTree(BlockStore& store, std::uint32_t hash_bits, const Secret& seed, bool by_prefix = false);

    // Returns kNone if nothing of this identity is in the tree.
    ParentRef find_root(const Identity& identity) const;
    ParentRef open_root(const Identity& identity);

    // The prefix in front of a block: its hash, and its key in the index.
    struct Prefix {
        BlockHash hash;
        std::uint64_t key = 0;
    };
    bool by_prefix() const { return by_prefix_; }
    // For trees by prefix only; the other functions serve both kinds.
    Prefix beginning(const Identity& identity) const;
    Prefix behind(const Prefix& prefix, const BlockContent& content) const {
        return {hasher_.block(prefix.hash, content.tokens, content.extras), child_key(prefix.key, content)};
    }
    Prefix behind(BlockIndex block) const { return behind(above_[number(block)], content(block)); }
    // The prefix before the block's content, whether the block is private or not.
    const Prefix& above(BlockIndex block) const { return above_[number(block)]; }
    void set_above(BlockIndex block, const Prefix& prefix) { above_[number(block)] = prefix; }
    // Returns kNone while nothing follows the prefix.
    ParentRef find_prefix(const Prefix& prefix) const;
    ParentRef open_prefix(const Prefix& prefix, const Identity& identity);
    // The number of prefixes that have lost their last block while something that follows them is present.
    std::uint32_t orphaned() const { return orphaned_; }
    // The prefix of a root in a tree by prefix; empty in other trees.
    Prefix prefix_of(ParentRef parent) const { return by_prefix_ ? roots_[parent.root_index()].prefix : Prefix{}; }

    // The parent of whatever follows the block. In a tree by prefix it is kNone while nothing follows.
    ParentRef below(BlockIndex block) const {
        return by_prefix_ ? (next_[number(block)] == kNone ? ParentRef() : ParentRef::root(next_[number(block)]))
                          : ParentRef(block);
    }
    // The parent's block, or kNone if the parent is a root whose block is gone or never existed.
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
    // The tree block got a primary slot, or lost it. lose_primary() returns the parent's block if that has no child in
    // primary any more.
    void gain_primary(BlockIndex block) { ++children_primary_of(store_[block].parent); }
    BlockIndex lose_primary(BlockIndex block) {
        const ParentRef parent = store_[block].parent;
        return --children_primary_of(parent) == 0 ? block_of(parent) : BlockIndex{kNone};
    }
    // A key stands for a whole prefix in 64 bits, for this tree's index alone. It is never shown.
    std::uint64_t root_key(const Identity& identity) const { return beginning(identity).key; }
    std::uint64_t key_of(ParentRef parent) const;
    // Gives each root the hash that `hash_of(identity)` makes of its identity. It must be the same function each time;
    // it is called once for each tenant.
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

    // Counts how often a block or a root has come or gone. While it stays the same, look-ups find the same.
    std::uint64_t changes() const { return changes_; }
    // Look-ups find something else from now on, although no block comes or goes.
    void note_change() { ++changes_; }

    BlockContent content(BlockIndex block) const { return {store_.content(block), store_.extras(block)}; }
    bool holds(BlockIndex block, const BlockContent& wanted) const;
    // One of the children, the same until they change; kNone without any.
    BlockIndex some_child(ParentRef parent) const { return children_of(parent); }
    void prefetch_below(BlockIndex block) const {
        if (const BlockIndex child = std::as_const(store_)[block].children; child != kNone) {
            store_.prefetch(child);
        }
    }
    // So many blocks lie between a block and the one that is fetched while a walk is at it.
    static constexpr std::uint32_t kLead = 6;
    // `further` is kLead blocks behind `block` on a path that was stored. A walk that passes `block` fetches it: links from
    // block to block alone would let each wait for the memory of the one before it.
    void note_further(BlockIndex block, BlockIndex further) { further_[number(block)] = further; }
    void prefetch_further(BlockIndex block) const {
        if (const BlockIndex further = further_[number(block)]; further != kNone) {
            store_.prefetch(further);
            prefetch_memory(&further_[number(further)]);
        }
    }
    // The full child of `parent` with this content, or kNone.
    BlockIndex find_child(ParentRef parent, std::uint64_t key, const BlockContent& content) const;
    void prefetch(std::uint64_t key) const { index_.prefetch(IndexHash::scattered(key)); }
    BlockIndex hint(std::uint64_t key) const { return index_.hint(IndexHash::scattered(key)); }

    // From now on the hashes of full blocks are known. Only an empty tree can begin with that.
    void keep_hashes();
    // The hash of a full block in the tree, as it is shown, and that of its parent, if it has one. Both need
    // keep_hashes().
    BlockHash block_hash(BlockIndex block) const { return hasher_.shown(hashes_[number(block)]); }
    std::optional<BlockHash> parent_hash(BlockIndex block) const;

    struct Beginning {
        BlockIndex block = kNone;
        std::uint32_t tokens = 0;
    };
    // The child with equal extras and the longest common prefix of at least one token. Ties go to the smallest content.
    Beginning best_prefix(ParentRef parent, const BlockContent& query) const;

    // Makes the block a child of `parent`. The block's tokens, extras and key are set.
    void add(BlockIndex block, ParentRef parent);
    // Unlinks a block whose children are gone or already emptied. Returns its parent.
    ParentRef remove(BlockIndex block);
    // Appends all descendants, parents before children.
    void collect_descendants(BlockIndex block, std::vector<BlockIndex>& out) const;
    void collect_direct_children(BlockIndex block, std::vector<BlockIndex>& out) const;

    // The heap order of the treaps: fixed for each block, spread evenly, and the same wherever the seed is.
    std::uint32_t rank(BlockIndex block) const;

    // Verifies one tree block's entries in the indexes, and the roots. Counts the roots' children in `seen`.
    void check_indexed(BlockIndex block) const;
    void check_roots(std::vector<std::uint32_t>& seen) const;

  private:
    struct Root {
        TenantIndex::Tenant* tenant = nullptr;  // the owner
        Prefix prefix;
        BlockIndex children = kNone;
        std::uint32_t children_primary = 0;
        // Only in a tree by prefix:
        BlockIndex block = kNone;  // the tree block that ends the prefix
        bool first = true;         // nothing precedes it
    };

    std::uint32_t& children_primary_of(ParentRef parent) {
        return is_root(parent) ? roots_[parent.root_index()].children_primary : store_[parent.block()].children_primary;
    }
    std::uint32_t new_root(TenantIndex::Tenant& tenant, const Prefix& prefix);
    void close_root(std::uint32_t root);
    void link_prefix(BlockIndex block);
    BlockIndex find_end(const Prefix& prefix) const;
    void check_prefix(std::uint32_t root) const;
    void check_tenant(std::uint32_t root) const;
    std::uint64_t place_of(const Prefix& prefix) const {
        return IndexHash::scattered(index_hash_.block_hash(prefix.hash));
    }
    BlockIndex& children_of(ParentRef parent) {
        return is_root(parent) ? roots_[parent.root_index()].children : store_[parent.block()].children;
    }
    BlockIndex children_of(ParentRef parent) const {
        return is_root(parent) ? roots_[parent.root_index()].children : std::as_const(store_)[parent.block()].children;
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
    std::vector<std::uint32_t> next_;  // [block]: the root of the blocks that follow it, or kNone
    std::vector<BlockIndex> further_;  // [block]: a guess; what it names may have left the tree since
    std::uint32_t orphaned_ = 0;
    std::uint64_t changes_ = 0;
    std::vector<BlockHash> hashes_;  // [block]; empty unless they are kept
    TenantIndex tenants_;
    std::vector<Root> roots_;
    std::vector<std::uint32_t> free_roots_;
};

}  // namespace kvfix
