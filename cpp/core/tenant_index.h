// The identities of a tree's roots. Each is kept once, however many roots it has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/block_hash.h"
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
    struct Roots {
        std::uint32_t count = 0;
        std::uint32_t last = kNone;                   // the root that was made last
        mutable std::optional<BlockHash> plain_root;  // for digests; see ReuseTree::plain_root()
    };
    // A name, and its roots. There is at least one.
    using Tenant = std::pair<const OwnName, Roots>;

    std::size_t size() const { return by_identity_.size(); }
    const Tenant* find(const Name& name) const;
    // Finds the tenant or makes it. The caller that makes one gives it a root. The address is valid until close().
    Tenant& open(const Name& name);
    // The tenant has no roots any more.
    void close(const Tenant& tenant);

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

    std::unordered_map<OwnName, Roots, KeyOf, Same> by_identity_;  // lookups only; never iterated
};

}  // namespace kvfix
