// Checks of what must hold between any two calls, as far as a tree alone can know.
#include <algorithm>
#include <map>
#include <vector>

#include "core/check.h"
#include "core/reuse_tree.h"

namespace kvfix {

void ReuseTree::check_indexed(BlockIndex block) const {
    const Block& record = store_[block];
    if (is_full(block)) {
        check(record.key == child_key(key_of(record.parent), content(block)),
              "a block's key is not that of its content");
        check(find_child(record.parent, record.key, content(block)) == block,
              "a tree block cannot be found, or another in its place");
        check(hashes_.empty() || hashes_[number(block)] == hash_below(record.parent, block),
              "a block's hash is not that of its content");
    }
    check(!by_prefix_ || (is_root(record.parent) && above(block).hash == prefix_of(record.parent).hash),
          "a block is not filed under what comes before it");
    const BlockIndex further = further_[number(block)];
    check(further == kNone || number(further) < store_.size(), "a block leads to one that does not exist");
    const BlockIndex left = record.child_left;
    const BlockIndex right = record.child_right;
    check(left == kNone || compare(content(left), content(block)) < 0, "a parent's index of children is out of order");
    check(right == kNone || compare(content(block), content(right)) < 0,
          "a parent's index of children is out of order");
}

// The root of a prefix knows the block that ends it, and is known by it.
void ReuseTree::check_prefix(std::uint32_t root) const {
    const Root& prefix = roots_[root];
    if (prefix.block != kNone) {
        check(next_[number(prefix.block)] == root && store_[prefix.block].in_tree &&
                  behind(prefix.block).hash == prefix.prefix.hash,
              "a prefix and the block that ends it disagree");
    } else {
        check(prefix.first || find_end(prefix.prefix) == kNone, "a prefix does not know that its block is there");
    }
}

void ReuseTree::check_tenant(std::uint32_t root) const {
    const TenantIndex::Tenant* tenant = roots_[root].tenant;
    check(tenant->first.key == root_key(tenant->first.text), "a tenant's key is not that of his identity");
    check(tenants_.find(tenant->first.name()) == tenant, "a root's tenant is not known by his identity");
}

void ReuseTree::check_roots(std::vector<std::uint32_t>& seen) const {
    std::vector<BlockIndex> children;
    std::uint32_t orphans = 0;
    std::map<const TenantIndex::Tenant*, std::uint32_t> roots_of;
    for (std::uint32_t root = 0; root < roots_.size(); ++root) {
        if (roots_[root].children == kNone) {
            continue;
        }
        orphans += by_prefix_ && !roots_[root].first && roots_[root].block == kNone ? 1 : 0;
        check((by_prefix_ ? find_prefix(roots_[root].prefix) : find_root(roots_[root].tenant->first.text)) ==
                  ParentRef::root(root),
              "a root cannot be found by its identity");
        check_prefix(root);
        check_tenant(root);
        ++roots_of[roots_[root].tenant];
        children.clear();
        collect_children(roots_[root].children, children);
        const auto in_primary = static_cast<std::uint32_t>(
            std::ranges::count_if(children, [&](BlockIndex child) { return store_[child].has(kPrimary); }));
        check(in_primary == roots_[root].children_primary, "a root's count of children in primary is wrong");
        for (const BlockIndex child : children) {
            check(store_[child].in_tree && store_[child].parent == ParentRef::root(root),
                  "a root's child does not know its root");
            ++seen[number(child)];
        }
    }
    check(orphans == orphaned_, "the count of prefixes whose blocks have gone is wrong");
    for (const auto& [tenant, roots] : roots_of) {
        check(tenant->second.count == roots && (by_prefix_ || roots == 1),
              "a root without children is kept, or one with children is lost");
    }
    check(roots_of.size() == tenants_.size(), "a tenant without roots is kept");
}

}  // namespace kvfix
