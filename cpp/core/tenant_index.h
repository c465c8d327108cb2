// The identities of a tree's roots. Each is kept once, with all its roots. So a tenant is found by adapter, by salt or
// by both, without a look at the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/block_hash.h"
#include "core/request.h"
#include "core/siphash.h"
#include "core/types.h"

namespace kvfix {

class TenantIndex {
  public:
    // A serialised identity, and the tree's keyed hash of it. A caller that passes a name has hashed it already.
    struct Name {
        std::string_view text;
        std::uint64_t key;
        bool operator==(const Name& other) const { return key == other.key && text == other.text; }
    };
    struct OwnName {
        std::string text;
        std::uint64_t key;
        Name name() const { return {text, key}; }
    };
    struct Roots;
    // A name, and its roots. There is at least one.
    using Tenant = std::pair<const OwnName, Roots>;
    // Tenants with the same adapter, or with the same salt. Adding and removing one cost the same among thousands.
    struct Neighbours {
        Tenant* previous = nullptr;
        Tenant* next = nullptr;
    };
    struct Roots {
        std::uint32_t first = kNone;                  // the tree links the others behind it
        mutable std::optional<BlockHash> plain_root;  // for digests; see ReuseTree::plain_root()
        Neighbours by_lora{};
        Neighbours by_salt{};
    };

    // Nobody who lacks the key can choose adapters and salts that slow the index down.
    explicit TenantIndex(const Secret& key) : key_(key) {}

    std::size_t size() const { return by_identity_.size(); }
    const Tenant* find(const Name& name) const;
    // Finds the tenant or makes it. The caller that makes one gives it a root. The address is valid until close().
    Tenant& open(const Name& name);
    // The tenant has no roots any more.
    void close(const Tenant& tenant);
    // Without a salt it finds the adapter under every salt; without an adapter, the salt under every adapter. `exact`
    // names the pair. The order of the answer means nothing.
    std::vector<const Tenant*> find_all(std::optional<std::int64_t> lora_id, const Salt& salt, const Name& exact) const;
    // Whether the tenant stands between its neighbours, for invariants.
    bool is_linked(const Tenant& tenant) const;

  private:
    struct KeyOf {
        using is_transparent = void;
        std::size_t operator()(const Name& name) const { return name.key; }
        std::size_t operator()(const OwnName& name) const { return name.key; }
    };
    struct Same {
        using is_transparent = void;
        bool operator()(const OwnName& a, const OwnName& b) const { return a.name() == b.name(); }
        bool operator()(const Name& a, const OwnName& b) const { return a == b.name(); }
        bool operator()(const OwnName& a, const Name& b) const { return a.name() == b; }
    };
    // The first tenant with each adapter, or with each salt, by the keyed hash of that part of the name. Parts whose
    // hashes are equal share a list.
    using FirstOf = std::unordered_map<std::uint64_t, Tenant*>;
    using Side = Neighbours Roots::*;

    std::uint64_t key_of(std::string_view part) const { return SipHash(key_).end(part).first; }
    void link(FirstOf& first_of, Side side, std::string_view part, Tenant& tenant);
    void unlink(FirstOf& first_of, Side side, std::string_view part, const Tenant& tenant);

    const Secret key_;
    std::unordered_map<OwnName, Roots, KeyOf, Same> by_identity_;  // lookups only; never iterated
    // Only tenants with an adapter and a salt. The others are found by their exact name.
    FirstOf by_lora_;
    FirstOf by_salt_;
};

}  // namespace kvfix
