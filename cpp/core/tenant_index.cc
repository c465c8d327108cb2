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
    Tenant& tenant = *by_identity_.emplace(OwnName{std::string(name.text), name.key}, Roots{}).first;
    if (const auto [lora, salt] = split_identity(tenant.first.text); !lora.empty() && !salt.empty()) {
        link(by_lora_, &Roots::by_lora, lora, tenant);
        link(by_salt_, &Roots::by_salt, salt, tenant);
    }
    return tenant;
}

void TenantIndex::close(const Tenant& tenant) {
    if (const auto [lora, salt] = split_identity(tenant.first.text); !lora.empty() && !salt.empty()) {
        unlink(by_lora_, &Roots::by_lora, lora, tenant);
        unlink(by_salt_, &Roots::by_salt, salt, tenant);
    }
    // by iterator, because the key would be destroyed along with its entry
    by_identity_.erase(by_identity_.find(tenant.first));
}

void TenantIndex::link(FirstOf& first_of, Side side, std::string_view part, Tenant& tenant) {
    Tenant*& first = first_of[key_of(part)];
    if (first != nullptr) {
        (first->second.*side).previous = &tenant;
    }
    (tenant.second.*side).next = first;
    first = &tenant;
}

void TenantIndex::unlink(FirstOf& first_of, Side side, std::string_view part, const Tenant& tenant) {
    const auto [previous, next] = tenant.second.*side;
    if (next != nullptr) {
        (next->second.*side).previous = previous;
    }
    if (previous != nullptr) {
        (previous->second.*side).next = next;
    } else if (next != nullptr) {
        first_of[key_of(part)] = next;
    } else {
        first_of.erase(key_of(part));
    }
}

bool TenantIndex::is_linked(const Tenant& tenant) const {
    const auto [lora, salt] = split_identity(tenant.first.text);
    const auto stands = [&](const FirstOf& first_of, Side side, std::string_view part) {
        const auto [previous, next] = tenant.second.*side;
        const auto first = first_of.find(key_of(part));
        return first != first_of.end() && (previous == nullptr) == (first->second == &tenant) &&
               (previous == nullptr || (previous->second.*side).next == &tenant) &&
               (next == nullptr || (next->second.*side).previous == &tenant);
    };
    return lora.empty() || salt.empty() ||
           (stands(by_lora_, &Roots::by_lora, lora) && stands(by_salt_, &Roots::by_salt, salt));
}

std::vector<const TenantIndex::Tenant*> TenantIndex::find_all(std::optional<std::int64_t> lora_id, const Salt& salt,
                                                              const Name& exact) const {
    const bool is_salted = !std::holds_alternative<std::monostate>(salt);
    std::vector<const Tenant*> out;
    if (const Tenant* found = find(exact)) {
        out.push_back(found);
    }
    if (lora_id && is_salted) {
        return out;
    }
    // The part that was given is the whole of the exact name.
    const FirstOf& first_of = is_salted ? by_salt_ : by_lora_;
    const Side side = is_salted ? &Roots::by_salt : &Roots::by_lora;
    const auto first = first_of.find(key_of(exact.text));
    for (const Tenant* at = first == first_of.end() ? nullptr : first->second; at != nullptr;
         at = (at->second.*side).next) {
        KVFIX_STEP();
        const auto [its_lora, its_salt] = split_identity(at->first.text);
        if ((is_salted ? its_salt : its_lora) == exact.text) {
            out.push_back(at);
        }
    }
    return out;
}

}  // namespace kvfix
