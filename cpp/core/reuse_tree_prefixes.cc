// Trees of windows. Each prefix that something follows has a root.
#include <utility>

#include "core/reuse_tree.h"

namespace kvfix {

ParentRef ReuseTree::find_prefix(const Prefix& prefix) const {
    const BlockIndex root = roots_by_prefix_.find(
        place_of(prefix), [&](BlockIndex candidate) { return roots_[number(candidate)].prefix.hash == prefix.hash; });
    return root == kNone ? ParentRef() : ParentRef::root(number(root));
}

ParentRef ReuseTree::open_prefix(const Prefix& prefix, const Identity& identity) {
    if (const ParentRef found = find_prefix(prefix); found != kNone) {
        return found;
    }
    const BlockIndex end = find_end(prefix);
    // The block that ends the prefix has the same tenant. To look the tenant up costs time in proportion to the length
    // of its salt.
    TenantIndex::Tenant& tenant = end == kNone ? tenants_.open({identity.text(), root_key(identity)})
                                               : *roots_[store_[end].parent.root_index()].tenant;
    const std::uint32_t root = new_root(tenant, prefix);
    roots_[root].first = false;
    roots_[root].block = end;
    if (end != kNone) {
        next_[number(end)] = root;
    } else {
        ++orphaned_;
    }
    roots_by_prefix_.insert(place_of(prefix), BlockIndex{root});
    return ParentRef::root(root);
}

BlockIndex ReuseTree::find_end(const Prefix& prefix) const {
    return index_.find(IndexHash::scattered(prefix.key), [&](BlockIndex block) {
        return store_[block].key == prefix.key && behind(block).hash == prefix.hash;
    });
}

// The block has entered the tree, and blocks that follow it may be there already.
void ReuseTree::link_prefix(BlockIndex block) {
    if (orphaned_ == 0) {
        return;
    }
    if (const ParentRef root = find_prefix(behind(block)); root != kNone) {
        next_[number(block)] = root.root_index();
        roots_[root.root_index()].block = block;
        --orphaned_;
    }
}

// Nothing is left below the root.
void ReuseTree::close_root(std::uint32_t root) {
    Root& closed = roots_[root];
    free_roots_.push_back(root);
    if (--closed.tenant->second.count == 0) {
        tenants_.close(*closed.tenant);
    }
    if (!by_prefix_) {
        return;
    }
    roots_by_prefix_.erase(place_of(closed.prefix), BlockIndex{root});
    if (closed.block != kNone) {
        next_[number(std::exchange(closed.block, kNone))] = kNone;
    } else {
        orphaned_ -= closed.first ? 0 : 1;
    }
}

std::optional<BlockHash> ReuseTree::parent_hash(BlockIndex block) const {
    const ParentRef parent = store_[block].parent;
    if (!is_root(parent)) {
        return block_hash(parent.block());
    }
    const Root& root = roots_[parent.root_index()];
    return root.first ? std::nullopt : std::optional(hasher_.shown(root.prefix.hash));
}

}  // namespace kvfix
