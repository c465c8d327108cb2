// The identities of a tree's roots. Each is kept once, however many roots it has, and knows them: so a tenant is found, by his
// adapter, his salt or both, without a look at the others.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/request.h"
#include "core/siphash.h"
#include "core/types.h"

namespace kvfix {

class TenantIndex {
  public:
    struct Roots {
        std::uint32_t first = kNone;  // the tree links the others behind it
    };
    // The serialised identity, and its roots: at least one.
    using Tenant = std::pair<const std::string, Roots>;

    explicit TenantIndex(const Secret& seed);

    std::size_t size() const { return by_identity_.size(); }
    const Tenant* find(const std::string& identity) const;
    // Found or made. The caller that makes one gives it a root. The address is good until it is closed.
    Tenant& open(const std::string& identity);
    // It has no roots any more.
    void close(const Tenant& tenant);
    // Of an adapter whatever the salt where none is given, and the other way round. In no order that means anything.
    std::vector<const Tenant*> find_all(std::optional<std::int64_t> lora_id, const Salt& salt) const;

  private:
    struct KeyedHash {
        Secret key;
        std::size_t operator()(std::string_view text) const { return SipHash(key).end(text).first; }
    };
    // What somebody has in common with others, then the rest; ordered, so that nobody can make it slow by what he calls himself.
    using Mixed = std::map<std::pair<std::string_view, std::string_view>, const Tenant*>;

    std::unordered_map<std::string, Roots, KeyedHash> by_identity_;  // lookups only; never iterated
    // Those that have an adapter and a salt: the others are found as what they are.
    Mixed by_lora_;
    Mixed by_salt_;
};

}  // namespace kvfix
