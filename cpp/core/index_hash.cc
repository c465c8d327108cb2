#include "core/index_hash.h"

#include <cstddef>
#include <cstring>

#include "core/steps.h"

namespace kvfix {
namespace {

// Derives independent words from one key.
class KeyStream {
  public:
    explicit KeyStream(const Secret& key) : key_(key) {}
    Hash128 next() {
        SipHash hash(key_);
        hash.add(drawn_++);
        return hash.end();
    }

  private:
    Secret key_;
    std::uint64_t drawn_ = 0;
};

}  // namespace

IndexHash::IndexHash(const Secret& seed, std::uint32_t tokens_per_block)
    : text_key_(key_for(seed, "texts in the index")), token_keys_(std::size_t{tokens_per_block + 3} / 4 * 2) {
    KeyStream keys(key_for(seed, "tokens in the index"));
    for (std::size_t pair = 0; pair < token_keys_.size(); pair += 2) {
        const Hash128 drawn = keys.next();
        token_keys_[pair] = drawn.first;
        token_keys_[pair + 1] = drawn.second;
    }
    const auto wide = [&] {
        const Hash128 drawn = keys.next();
        return static_cast<Wide>(drawn.first) << 64 | drawn.second;
    };
    block_ = {wide(), wide(), wide(), wide(), wide()};
    hash_ = {wide(), wide(), wide()};
}

std::uint64_t IndexHash::root(std::string_view identity) const {
    KVFIX_STEPS(identity.size() / 8);
    return text(identity);
}

std::uint64_t IndexHash::block(std::uint64_t parent, std::span<const TokenId> tokens, std::string_view extras) const {
    Wide sum = 0;
    Wide other_sum = 0;  // two sums side by side, because one would wait for its own result
    const std::uint64_t* keys = token_keys_.data();
    const TokenId* at = tokens.data();
    std::uint64_t words[4];
    std::size_t bytes = tokens.size_bytes();
    for (; bytes >= sizeof words; bytes -= sizeof words, at += 8, keys += 4) {
        std::memcpy(words, at, sizeof words);
        sum += static_cast<Wide>(words[0] + keys[0]) * (words[1] + keys[1]);
        other_sum += static_cast<Wide>(words[2] + keys[2]) * (words[3] + keys[3]);
    }
    sum += other_sum;
    constexpr std::size_t kPair = 2 * sizeof words[0];
    for (; bytes >= kPair; bytes -= kPair, at += 4, keys += 2) {
        std::memcpy(words, at, kPair);
        sum += static_cast<Wide>(words[0] + keys[0]) * (words[1] + keys[1]);
    }
    if (bytes != 0) {
        words[0] = words[1] = 0;
        std::memcpy(words, at, bytes);
        sum += static_cast<Wide>(words[0] + keys[0]) * (words[1] + keys[1]);
    }
    Wide out = block_.offset + block_.low * static_cast<std::uint64_t>(sum) +
               block_.high * static_cast<std::uint64_t>(sum >> 64);
    if (!extras.empty()) {
        out += block_.extras * text(extras);
    }
    return static_cast<std::uint64_t>((out + block_.parent * parent) >> 64);
}

std::uint64_t IndexHash::block_hash(const BlockHash& hash) const {
    return static_cast<std::uint64_t>((hash_.offset + hash_.first * hash.first + hash_.second * hash.second) >> 64);
}

}  // namespace kvfix
