#include "core/tenant_index.h"

#include "core/steps.h"

namespace kvfix {

const TenantIndex::Tenant* TenantIndex::find(const Name& name) const {
    const auto found = by_identity_.find(name);
    return found == by_identity_.end() ? nullptr : &*found;
}

TenantIndex::Tenant& TenantIndex::open(const Name& name) {
    if (const auto found = by_identity_.find(name); found != by_identity_.end()) {
        return *found;
    }
    const auto at = by_identity_.emplace(OwnName{std::string(name.text), name.key}, Roots{}).first;
    if (const auto [lora, salt] = split_identity(at->first.text); !lora.empty() && !salt.empty()) {
        by_lora_.emplace(std::pair{lora, salt}, &*at);
        by_salt_.emplace(std::pair{salt, lora}, &*at);
    }
    return *at;
}

void TenantIndex::close(const Tenant& tenant) {
    const auto [lora, salt] = split_identity(tenant.first.text);
    by_lora_.erase({lora, salt});
    by_salt_.erase({salt, lora});
    // by iterator, because the key would be destroyed along with its entry
    by_identity_.erase(by_identity_.find(tenant.first));
}

std::vector<const TenantIndex::Tenant*> TenantIndex::find_all(std::optional<std::int64_t> lora_id, const Salt& salt,
                                                              const Name& exact) const {
    const std::string lora = serialise_identity(lora_id, {});
    const std::string salted = serialise_identity(std::nullopt, salt);
    std::vector<const Tenant*> out;
    if (const Tenant* found = find(exact)) {
        out.push_back(found);
    }
    if (!lora.empty() && !salted.empty()) {
        return out;
    }
    const std::string& common = salted.empty() ? lora : salted;
    const Mixed& mixed = salted.empty() ? by_lora_ : by_salt_;
    for (auto at = mixed.lower_bound({common, {}}); at != mixed.end() && at->first.first == common; ++at) {
        KVFIX_STEP();
        out.push_back(at->second);
    }
    return out;
}

}  // namespace kvfix
