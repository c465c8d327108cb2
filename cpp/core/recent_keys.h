// The keys that were noted last: at least as many as asked for, and fewer than twice as many. There are two
// generations. When the young one is full, it becomes the old one, and the old one is forgotten. Only 32 bits of a key
// are kept, so about one key in a billion is taken for another one. That is good enough for advice, and for nothing
// else.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/index_hash.h"
#include "core/prefetch.h"
#include "core/steps.h"

namespace kvfix {

class RecentKeys {
  public:
    explicit RecentKeys(std::uint32_t keys) : keys_(std::max(keys, 1U)), young_(places(keys_)), old_(places(keys_)) {}

    void prefetch(std::uint64_t key) const {
        prefetch_memory(&young_[home(young_, key)]);
        prefetch_memory(&old_[home(old_, key)]);
    }
    bool contains(std::uint64_t key) const { return has(young_, key) || has(old_, key); }

    std::uint32_t noted() const { return noted_; }
    // Keys that are remembered; one that was noted in both generations counts twice.
    std::uint32_t size() const { return noted_ + noted_before_; }

    void note(std::uint64_t key) {
        if (has(young_, key)) {
            return;
        }
        if (noted_ == keys_) {
            std::swap(young_, old_);
            std::ranges::fill(young_, 0U);
            noted_before_ = std::exchange(noted_, 0U);
        }
        young_[find(young_, key)] = tag(key);
        ++noted_;
    }

  private:
    using Tags = std::vector<std::uint32_t>;

    static std::size_t places(std::uint32_t keys) { return std::size_t{keys} * 3 / 2 + 2; }       // keeps runs short
    static std::uint32_t tag(std::uint64_t key) { return static_cast<std::uint32_t>(key) | 1U; }  // 0 means empty

    static bool has(const Tags& tags, std::uint64_t key) { return tags[find(tags, key)] != 0; }

    static std::size_t home(const Tags& tags, std::uint64_t key) {
        return (IndexHash::scattered(key) >> 32) * tags.size() >> 32;
    }

    // The place where the key is, or where it would go.
    static std::size_t find(const Tags& tags, std::uint64_t key) {
        std::size_t at = home(tags, key);
        while (tags[at] != 0 && tags[at] != tag(key)) {
            KVFIX_STEP();
            at = at + 1 == tags.size() ? 0 : at + 1;
        }
        return at;
    }

    std::uint32_t keys_;
    Tags young_;
    Tags old_;
    std::uint32_t noted_ = 0;         // in the young generation
    std::uint32_t noted_before_ = 0;  // in the old one
};

}  // namespace kvfix
