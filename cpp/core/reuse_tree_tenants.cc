// Whose the blocks are.
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/request.h"
#include "core/reuse_tree.h"

namespace kvfix {
namespace {

bool is_of(const std::string& identity, std::optional<std::int64_t> lora_id, const Salt& salt) {
    const auto [lora, salted] = split_identity(identity);
    return (!lora_id || lora == serialise_identity(lora_id, {})) &&
           (std::holds_alternative<std::monostate>(salt) || salted == serialise_identity(std::nullopt, salt));
}

}  // namespace

void ReuseTree::collect_tenant(std::optional<std::int64_t> lora_id, const Salt& salt, std::vector<BlockIndex>& out) {
    if (by_prefix_) {  // one identity has many roots, and they come and go with every block
        for (const Root& root : roots_) {
            if (root.children != kNone && is_of(root.identity, lora_id, salt)) {
                collect_children(root.children, out);
            }
        }
        return;
    }
    if (!tenants_) {
        tenants_.emplace();
        for (const auto& [identity, root] : root_by_identity_) {  // ordered there, whatever the order here
            tenants_->add(identity);
        }
    }
    for (const std::string& identity : tenants_->find(lora_id, salt)) {
        collect_children(roots_[root_by_identity_.find(identity)->second].children, out);
    }
}

}  // namespace kvfix
