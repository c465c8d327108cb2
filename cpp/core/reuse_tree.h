// The blocks that can be found again. A node's path from its root spells its whole prefix, so two blocks with equal content
// and the same parent are the same prefix; hashes only speed the search up.
//
// Every parent keeps its children in an ordered index (a treap threaded through the blocks, ordered by extras, then tokens): the
// child with the longest common prefix stands next to where a query would be inserted.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/block_store.h"
#include "core/hash_index.h"
#include "core/types.h"

namespace kvfix {

constexpr bool is_root(ParentRef parent) { return parent.is_root(); }

// What a block holds, or would hold.
struct BlockContent {
    std::span<const TokenId> tokens;
    std::string_view extras;
};

class ReuseTree {
  public:
    // `seed` places children in their indexes. Who does not know it cannot make lists of them.
    ReuseTree(BlockStore& store, std::uint32_t hash_bits, std::uint64_t seed);

    // kNone when nothing of this identity is in the tree.
    ParentRef find_root(const std::string& identity) const;
    ParentRef open_root(const std::string& identity, std::uint64_t hash);
    std::uint64_t hash_of(ParentRef parent) const;
    std::uint64_t child_hash(std::uint64_t parent_hash, const BlockContent& content) const;

    BlockContent content(BlockIndex block) const { return {store_.content(block), store_.extras(block)}; }
    // The full child of `parent` with this content, or kNone.
    BlockIndex find_child(ParentRef parent, std::uint64_t hash, const BlockContent& content) const;
    void prefetch(std::uint64_t hash) const { index_.prefetch(hash); }
    BlockIndex hint(std::uint64_t hash) const { return index_.hint(hash); }
    // The only full block under this hash, or kNone if there is none or more than one.
    BlockIndex find_unambiguous(std::uint64_t hash) const;

    struct Prefix {
        BlockIndex block = kNone;
        std::uint32_t tokens = 0;
    };
    // The child with equal extras and the longest common prefix of at least one token; ties go to the smallest content.
    Prefix best_prefix(ParentRef parent, const BlockContent& query) const;

    // The block's tokens, extras and hash are set; it becomes a child of `parent`.
    void add(BlockIndex block, ParentRef parent);
    // Unlinks a childless or already emptied block. Returns its parent.
    ParentRef remove(BlockIndex block);
    // Appends all descendants, parents before children.
    void collect_descendants(BlockIndex block, std::vector<BlockIndex>& out) const;
    void collect_all(std::vector<BlockIndex>& out) const;
    void collect_direct_children(BlockIndex block, std::vector<BlockIndex>& out) const;

    // Heap order of the treaps: fixed per block, spread evenly, the same wherever the seed is.
    std::uint32_t rank(BlockIndex block) const;

    // Verifies one tree block's entry in the hash index, and the roots; counts the roots' children in `seen`.
    void check_indexed(BlockIndex block) const;
    void check_roots(std::vector<std::uint32_t>& seen) const;

  private:
    struct Root {
        std::string identity;
        std::uint64_t hash = 0;
        BlockIndex children = kNone;
    };

    BlockIndex& children_of(ParentRef parent) {
        return is_root(parent) ? roots_[parent.root_index()].children : store_[parent.block()].children;
    }
    BlockIndex children_of(ParentRef parent) const {
        return is_root(parent) ? roots_[parent.root_index()].children : store_[parent.block()].children;
    }
    void insert_child(BlockIndex& top, BlockIndex block);
    void erase_child(BlockIndex& top, BlockIndex block);
    void split(BlockIndex top, const BlockContent& at, BlockIndex& below, BlockIndex& above);
    BlockIndex merge(BlockIndex below, BlockIndex above);
    void collect_children(BlockIndex top, std::vector<BlockIndex>& out) const;

    BlockStore& store_;
    std::uint64_t hash_mask_;
    std::uint64_t seed_;
    HashIndex index_;
    std::vector<Root> roots_;
    std::vector<std::uint32_t> free_roots_;
    std::unordered_map<std::string, std::uint32_t> root_by_identity_;  // lookups only; never iterated
};

}  // namespace kvfix
