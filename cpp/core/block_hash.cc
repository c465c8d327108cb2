#include "core/block_hash.h"

#include <algorithm>

#include "core/steps.h"

namespace kvfix {
namespace {

constexpr std::uint64_t low_bits(std::uint32_t count) {
    return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

}  // namespace

BlockHasher::BlockHasher(const Secret& seed, std::uint32_t bits)
    : key_(key_for(seed, "block hashes")), mask_{low_bits(bits), low_bits(std::max(bits, 64U) - 64)} {}

BlockHash BlockHasher::root(std::string_view identity) const {
    KVFIX_STEPS(identity.size() / 8);  // tenants choose its length
    SipHash hash(key_);
    hash.add(0);
    return hash.end(identity);
}

BlockHash BlockHasher::block(const BlockHash& parent, std::span<const TokenId> tokens, std::string_view extras) const {
    SipHash hash(key_);
    hash.add(tokens.size());
    hash.add(parent.first);
    hash.add(parent.second);
    hash.add(tokens.data(), tokens.size() / 2 * 2 * sizeof(TokenId));
    if (tokens.size() % 2 != 0) {
        hash.add(static_cast<std::uint32_t>(tokens.back()));
    }
    return hash.end(extras);
}

}  // namespace kvfix
