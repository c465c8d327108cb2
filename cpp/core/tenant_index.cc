#include "core/tenant_index.h"

#include "core/steps.h"

namespace kvfix {

TenantIndex::TenantIndex(const Secret& seed) : by_identity_(0, KeyedHash{key_for(seed, "identities of roots")}) {}

const TenantIndex::Tenant* TenantIndex::find(const std::string& identity) const {
    const auto found = by_identity_.find(identity);
    return found == by_identity_.end() ? nullptr : &*found;
}

TenantIndex::Tenant& TenantIndex::open(const std::string& identity) {
    const auto [at, is_new] = by_identity_.try_emplace(identity);
    if (const auto [lora, salt] = split_identity(at->first); is_new && !lora.empty() && !salt.empty()) {
        by_lora_.emplace(std::pair{lora, salt}, &*at);
        by_salt_.emplace(std::pair{salt, lora}, &*at);
    }
    return *at;
}

void TenantIndex::close(const Tenant& tenant) {
    const auto [lora, salt] = split_identity(tenant.first);
    by_lora_.erase({lora, salt});
    by_salt_.erase({salt, lora});
    by_identity_.erase(by_identity_.find(tenant.first));  // by place: the key that is asked for goes with it
}

std::vector<const TenantIndex::Tenant*> TenantIndex::find_all(std::optional<std::int64_t> lora_id,
                                                              const Salt& salt) const {
    const std::string lora = serialise_identity(lora_id, {});
    const std::string salted = serialise_identity(std::nullopt, salt);
    std::vector<const Tenant*> out;
    if (const Tenant* exact = find(lora + salted)) {
        out.push_back(exact);
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
