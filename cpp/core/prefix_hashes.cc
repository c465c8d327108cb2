#include "core/prefix_hashes.h"

#include <span>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvfix {

PrefixHashes::PrefixHashes(RequestPtr request, const BlockHasher& hasher, std::uint32_t tokens_per_block)
    : request_(std::move(request)), hasher_(hasher), tokens_per_block_(tokens_per_block) {}

BlockHash PrefixHashes::at(std::uint32_t block) {
    if (block >= size()) {
        throw std::out_of_range("request " + std::to_string(request_->id) + " has " + std::to_string(size()) +
                                " full blocks, and no block " + std::to_string(block));
    }
    const std::lock_guard lock(mutex_);
    while (known_.size() <= block) {
        const auto begin = static_cast<std::uint32_t>(known_.size()) * tokens_per_block_;
        const BlockHash before = known_.empty() ? hasher_.root(request_->identity.text()) : known_.back();
        known_.push_back(hasher_.block(before, std::span(request_->tokens).subspan(begin, tokens_per_block_),
                                       request_->block_extras(begin, begin + tokens_per_block_)));
    }
    return hasher_.shown(known_[block]);
}

}  // namespace kvfix
