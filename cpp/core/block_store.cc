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
    free_records_.pop_back();
    return block;
}

void BlockStore::release(BlockIndex block) {
    Block& record = blocks_[block];
    check(!record.in_tree && !record.has(kPrimary) && !record.has(kHost) && record.owners == 0,
          "a live record is released");
    if (record.has_extras) {
        extras_.erase(block);
    }
    const std::uint32_t generation = record.generation;
    record = Block{};
    record.generation = generation;
    free_records_.push_back(block);
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
