#include "core/block_store.h"

#include <numeric>
#include <utility>

namespace kvfix {
namespace {

// Taken from the back: the lowest number goes first.
std::vector<std::uint32_t> descending(std::uint32_t count) {
    std::vector<std::uint32_t> numbers(count);
    std::iota(numbers.rbegin(), numbers.rend(), 0U);
    return numbers;
}

}  // namespace

BlockStore::BlockStore(std::uint32_t blocks_primary, std::uint32_t blocks_host, std::uint32_t tokens_per_block)
    : tokens_per_block_(tokens_per_block),
      slots_{blocks_primary, blocks_host},
      blocks_(std::size_t{blocks_primary} + blocks_host),
      tokens_(blocks_.size() * tokens_per_block),
      free_records_(descending(blocks_primary + blocks_host)),
      free_slots_{descending(blocks_primary), descending(blocks_host)} {}

BlockIndex BlockStore::acquire() {
    check(!free_records_.empty(), "more live records than slots");
    const BlockIndex block = free_records_.back();
    free_digest_.remove(digest_of_words(kRecords, free_records_.size(), block));
    free_records_.pop_back();
    return block;
}

void BlockStore::release(BlockIndex block) {
    Block& record = (*this)[block];
    check(!record.in_tree && !record.has(kPrimary) && !record.has(kHost) && record.owners == 0,
          "a live record is released");
    if (record.has_extras) {
        extras_.erase(block);
    }
    const std::uint32_t generation = record.generation;
    record = Block{};
    record.generation = generation;
    record.changed = watched_;
    free_records_.push_back(block);
    free_digest_.add(digest_of_words(kRecords, free_records_.size(), block));
}

std::vector<BlockIndex> BlockStore::take_changed() {
    if (!watched_) {
        watched_ = true;
        std::vector<BlockIndex> all(blocks_.size());
        std::iota(all.begin(), all.end(), 0U);
        return all;
    }
    for (const BlockIndex block : changed_) {
        blocks_[block].changed = false;
    }
    return std::exchange(changed_, {});
}

std::string_view BlockStore::extras(BlockIndex block) const {
    return blocks_[block].has_extras ? std::string_view(extras_.at(block)) : std::string_view();
}

void BlockStore::set_extras(BlockIndex block, std::string extras) {
    if (!extras.empty()) {
        extras_[block] = std::move(extras);
        blocks_[block].has_extras = true;
    } else if (blocks_[block].has_extras) {
        extras_.erase(block);
        blocks_[block].has_extras = false;
    }
}

}  // namespace kvfix
