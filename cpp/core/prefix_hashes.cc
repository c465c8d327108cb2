#include "core/prefix_hashes.h"

#include <span>
#include <utility>

#include "core/check.h"

namespace kvfix {

PrefixHashes::PrefixHashes(RequestPtr request, const BlockHasher& hasher, std::uint32_t tokens_per_block)
    : request_(std::move(request)), hasher_(hasher), tokens_per_block_(tokens_per_block) {}

BlockHash PrefixHashes::at(std::uint32_t block) {
    check(block < request_->num_tokens() / tokens_per_block_, "the hash of a block that the prompt does not fill");
    while (known_.size() <= block) {
        const auto begin = static_cast<std::uint32_t>(known_.size()) * tokens_per_block_;
        const BlockHash before = known_.empty() ? hasher_.root(request_->identity.text()) : known_.back();
        known_.push_back(hasher_.block(before, std::span(request_->tokens).subspan(begin, tokens_per_block_),
                                       request_->block_extras(begin, begin + tokens_per_block_)));
    }
    return hasher_.shown(known_[block]);
}

}  // namespace kvfix
