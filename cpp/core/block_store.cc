#include "core/block_store.h"

#include <utility>

namespace kvfix {
namespace {

// The lowest number goes first, because numbers are taken from the back.
template <class Index>
std::vector<Index> descending(std::uint32_t count) {
    std::vector<Index> out;
    out.reserve(count);
    while (count > 0) {
        out.push_back(Index{--count});
    }
    return out;
}

}  // namespace

BlockStore::BlockStore(std::uint32_t blocks_primary, std::uint32_t blocks_host, std::uint32_t tokens_per_block)
    : tokens_per_block_(tokens_per_block),
      slots_{blocks_primary, blocks_host},
      blocks_(std::size_t{blocks_primary} + blocks_host),
      tokens_(blocks_.size() * tokens_per_block),
      free_records_(descending<BlockIndex>(blocks_primary + blocks_host)),
      free_slots_{descending<SlotIndex>(blocks_primary), descending<SlotIndex>(blocks_host)} {}

BlockIndex BlockStore::acquire() {
    check(!free_records_.empty(), "more live records than slots");
    const BlockIndex block = free_records_.back();
    free_digest_.remove(kRecords, free_records_.size(), block);
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
    free_digest_.add(kRecords, free_records_.size(), block);
}

// Out of line, so that the operator stays small enough to inline.
void BlockStore::note_change(BlockIndex block) {
    blocks_[number(block)].changed = true;
    changed_.push_back(block);
}

// A member's place in its set is how many are free along with it.
std::uint64_t BlockStore::free_digest() {
    return free_digest_.value([this] {
        for (std::size_t tier = 0; tier < kTiers; ++tier) {
            for (std::size_t i = 0; i < free_slots_[tier].size(); ++i) {
                free_digest_.add(tier, i + 1, free_slots_[tier][i]);
            }
        }
        for (std::size_t i = 0; i < free_records_.size(); ++i) {
            free_digest_.add(kRecords, i + 1, free_records_[i]);
        }
    });
}

std::vector<BlockIndex> BlockStore::take_changed() {
    if (!watched_) {
        watched_ = true;
        return {all().begin(), all().end()};
    }
    for (const BlockIndex block : changed_) {
        blocks_[number(block)].changed = false;
    }
    return std::exchange(changed_, {});
}

std::string_view BlockStore::extras(BlockIndex block) const {
    return (*this)[block].has_extras ? std::string_view(extras_.at(block)) : std::string_view();
}

void BlockStore::set_extras(BlockIndex block, std::string extras) {
    if (!extras.empty()) {
        extras_[block] = std::move(extras);
        (*this)[block].has_extras = true;
    } else if ((*this)[block].has_extras) {
        extras_.erase(block);
        (*this)[block].has_extras = false;
    }
}

}  // namespace kvfix
