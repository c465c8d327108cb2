// The blocks that can be found again. A node's path from its root spells its whole prefix, so two blocks with equal content
// and the same parent are the same prefix; keys and hashes only speed the search up.
//
// Every parent keeps its children in an ordered index (a treap threaded through the blocks, ordered by extras, then tokens): the
// child with the longest common prefix stands next to where a query would be inserted.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/block_store.h"
#include "core/hash_book.h"
#include "core/hash_index.h"
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

class ReuseTree {
  public:
    // `seed` gives the hashes of blocks and places them in the indexes. Who does not know it cannot make lists of them.
    ReuseTree(BlockStore& store, std::uint32_t hash_bits, const Secret& seed);

    // kNone when nothing of this identity is in the tree.
    ParentRef find_root(const std::string& identity) const;
    ParentRef open_root(const std::string& identity);
    // A key spells a whole prefix in 64 bits, for this tree's index alone. Never shown.
    std::uint64_t root_key(std::string_view identity) const { return index_hash_.root(identity) & key_mask_; }
    std::uint64_t key_of(ParentRef parent) const;
    const std::string& identity_of(ParentRef root) const { return roots_[root.root_index()].identity; }
    std::uint64_t child_key(std::uint64_t parent_key, const BlockContent& content) const {
        return index_hash_.block(parent_key, content.tokens, content.extras) & key_mask_;
    }

    BlockContent content(BlockIndex block) const { return {store_.content(block), store_.extras(block)}; }
    // The full child of `parent` with this content, or kNone.
    BlockIndex find_child(ParentRef parent, std::uint64_t key, const BlockContent& content) const;
    void prefetch(std::uint64_t key) const { index_.prefetch(IndexHash::scattered(key)); }
    BlockIndex hint(std::uint64_t key) const { return index_.hint(IndexHash::scattered(key)); }

    // From now on the hashes of full blocks are known. The first call computes those of all that are there.
    void keep_hashes();
    // Of a full block in the tree; hashes are kept.
    const BlockHash& block_hash(BlockIndex block) const { return (*hash_book_)[block]; }
    // The only full block under this hash, or kNone if there is none or more than one. Hashes are kept.
    BlockIndex find_unambiguous(const BlockHash& hash) const { return hash_book_->find_unambiguous(hash, index_hash_); }

    struct Prefix {
        BlockIndex block = kNone;
        std::uint32_t tokens = 0;
    };
    // The child with equal extras and the longest common prefix of at least one token; ties go to the smallest content.
    Prefix best_prefix(ParentRef parent, const BlockContent& query) const;

    // The block's tokens, extras and key are set; it becomes a child of `parent`.
    void add(BlockIndex block, ParentRef parent);
    // Unlinks a childless or already emptied block. Returns its parent.
    ParentRef remove(BlockIndex block);
    // Appends all descendants, parents before children.
    void collect_descendants(BlockIndex block, std::vector<BlockIndex>& out) const;
    void collect_all(std::vector<BlockIndex>& out) const;
    void collect_direct_children(BlockIndex block, std::vector<BlockIndex>& out) const;
    void collect_root_children(ParentRef root, std::vector<BlockIndex>& out) const {
        collect_children(roots_[root.root_index()].children, out);
    }
    // Identities of roots of that adapter, that salt, or both. Known from the first call on, which looks at every root.
    std::vector<std::string> identities_of(std::optional<std::int64_t> lora_id, const Salt& salt);

    // Heap order of the treaps: fixed per block, spread evenly, the same wherever the seed is.
    std::uint32_t rank(BlockIndex block) const;

    // Verifies one tree block's entries in the indexes, and the roots; counts the roots' children in `seen`.
    void check_indexed(BlockIndex block) const;
    void check_roots(std::vector<std::uint32_t>& seen) const;

  private:
    struct Root {
        std::string identity;
        std::uint64_t key = 0;
        BlockIndex children = kNone;
    };

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
    HashIndex index_;
    std::optional<HashBook> hash_book_;
    std::optional<TenantIndex> tenants_;
    std::vector<Root> roots_;
    std::vector<std::uint32_t> free_roots_;
    struct KeyedHash {
        Secret key;
        std::size_t operator()(std::string_view text) const { return SipHash(key).end(text).first; }
    };
    std::unordered_map<std::string, std::uint32_t, KeyedHash> root_by_identity_;  // lookups only; never iterated
};

}  // namespace kvfix
