// Knows which tenant owns which roots.
#include <vector>

#include "core/reuse_tree.h"
#include "core/steps.h"

namespace kvfix {

std::uint32_t ReuseTree::new_root(TenantIndex::Tenant& tenant, const Prefix& prefix) {
    if (free_roots_.empty()) {
        free_roots_.push_back(static_cast<std::uint32_t>(roots_.size()));
        roots_.emplace_back();
    }
    const std::uint32_t root = free_roots_.back();
    free_roots_.pop_back();
    std::uint32_t& first = tenant.second.first;
    roots_[root] = Root{.tenant = &tenant, .next = first, .prefix = prefix};
    if (first != kNone) {
        roots_[first].previous = root;
    }
    first = root;
    return root;
}

void ReuseTree::leave_tenant(const Root& root) {
    if (root.next != kNone) {
        roots_[root.next].previous = root.previous;
    }
    (root.previous == kNone ? root.tenant->second.first : roots_[root.previous].next) = root.next;
    if (root.tenant->second.first == kNone) {
        tenants_.close(*root.tenant);
    }
}

void ReuseTree::collect_tenant(std::optional<std::int64_t> lora_id, const Salt& salt,
                               std::vector<BlockIndex>& out) const {
    const Identity exact(serialise_identity(lora_id, salt));
    for (const TenantIndex::Tenant* tenant : tenants_.find_all(lora_id, salt, {exact.text(), root_key(exact)})) {
        for (std::uint32_t root = tenant->second.first; root != kNone; root = roots_[root].next) {
            KVFIX_STEP();
            collect_children(roots_[root].children, out);
        }
    }
}

}  // namespace kvfix
