#include "core/tenant_index.h"

namespace kvfix {

const TenantIndex::Tenant* TenantIndex::find(const Name& name) const {
    const auto found = by_identity_.find(name);
    return found == by_identity_.end() ? nullptr : &*found;
}

TenantIndex::Tenant& TenantIndex::open(const Name& name) {
    if (const auto found = by_identity_.find(name); found != by_identity_.end()) {
        return *found;
    }
    return *by_identity_.emplace(OwnName{std::string(name.text), name.key}, Roots{}).first;
}

void TenantIndex::close(const Tenant& tenant) {
    // by iterator, because the key would be destroyed along with its entry
    by_identity_.erase(by_identity_.find(tenant.first));
}

}  // namespace kvfix
