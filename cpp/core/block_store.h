// The records, tokens and slots of one window. It knows neither trees nor queues.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/block.h"
#include "core/check.h"
#include "core/prefetch.h"
#include "core/set_digest.h"
#include "core/types.h"

namespace kvfix {

class BlockRange {
  public:
    class Iterator {
      public:
        using iterator_category = std::input_iterator_tag;
        using value_type = BlockIndex;
        using difference_type = std::ptrdiff_t;
        using pointer = const BlockIndex*;
        using reference = BlockIndex;

        Iterator() = default;
        explicit Iterator(std::uint32_t at) : at_(at) {}
        BlockIndex operator*() const { return BlockIndex{at_}; }
        Iterator& operator++() {
            ++at_;
            return *this;
        }
        Iterator operator++(int) { return Iterator(at_++); }
        bool operator==(const Iterator& other) const = default;

      private:
        std::uint32_t at_ = 0;
    };

    explicit BlockRange(std::uint32_t count) : count_(count) {}
    Iterator begin() const { return Iterator(0); }
    Iterator end() const { return Iterator(count_); }

  private:
    std::uint32_t count_;
};

// Not a view of the standard library: clang 14, which builds the fuzz target, cannot compile those of GCC 12.
inline BlockRange blocks_up_to(std::uint32_t count) { return BlockRange(count); }

// Memory that begins at a cache line, so that a block of 16 tokens takes one line and not two.
template <class T>
struct LineAllocator {
    using value_type = T;
    static constexpr std::align_val_t kLine{64};

    LineAllocator() = default;
    template <class U>
    explicit LineAllocator(const LineAllocator<U>& /*other*/) {}
    T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
    void deallocate(T* memory, std::size_t /*count*/) { ::operator delete(memory, kLine); }
    bool operator==(const LineAllocator&) const = default;
};

class BlockStore {
  public:
    BlockStore(std::uint32_t blocks_primary, std::uint32_t blocks_host, std::uint32_t tokens_per_block);

    // A caller that asks for a mutable record is assumed to change it.
    Block& operator[](BlockIndex block) {
        Block& record = blocks_[number(block)];
        if (watched_ && !record.changed) [[unlikely]] {
            note_change(block);
        }
        return record;
    }
    const Block& operator[](BlockIndex block) const { return blocks_[number(block)]; }
    std::uint32_t size() const { return static_cast<std::uint32_t>(blocks_.size()); }
    std::uint32_t tokens_per_block() const { return tokens_per_block_; }
    // Every record, live or not.
    auto all() const { return blocks_up_to(size()); }

    // Takes a record without slots. One is always free, because a live record has at least one slot.
    BlockIndex acquire();
    void release(BlockIndex block);

    std::uint32_t slots(std::size_t tier) const { return slots_[tier]; }
    std::uint32_t slots_free(std::size_t tier) const { return static_cast<std::uint32_t>(free_slots_[tier].size()); }
    SlotIndex take_slot(std::size_t tier) {
        check(!free_slots_[tier].empty(), "a slot is taken from an empty tier");
        const SlotIndex slot = free_slots_[tier].back();
        free_digest_.remove(tier, free_slots_[tier].size(), slot);
        free_slots_[tier].pop_back();
        return slot;
    }
    void give_slot(std::size_t tier, SlotIndex slot) {
        free_slots_[tier].push_back(slot);
        free_digest_.add(tier, free_slots_[tier].size(), slot);
    }
    std::span<const SlotIndex> free_slots(std::size_t tier) const { return free_slots_[tier]; }
    std::span<const BlockIndex> free_records() const { return free_records_; }

    // A digest of the free records and slots, order included.
    std::uint64_t free_digest();
    // Returns the records that may have changed since the last call, each once; the first call returns all of them.
    std::vector<BlockIndex> take_changed();

    // The memory for a whole block of tokens.
    std::span<TokenId> tokens(BlockIndex block) {
        return {tokens_.data() + std::size_t{number(block)} * tokens_per_block_, tokens_per_block_};
    }
    std::span<const TokenId> tokens(BlockIndex block) const {
        return {tokens_.data() + std::size_t{number(block)} * tokens_per_block_, tokens_per_block_};
    }
    // The tokens of a tree block.
    std::span<const TokenId> content(BlockIndex block) const { return tokens(block).first((*this)[block].num_tokens); }

    std::string_view extras(BlockIndex block) const;
    void set_extras(BlockIndex block, std::string extras);

    void prefetch(BlockIndex block) const {
        prefetch_memory(&(*this)[block]);
        const TokenId* tokens = tokens_.data() + std::size_t{number(block)} * tokens_per_block_;
        for (std::uint32_t line = 0; line < std::min(tokens_per_block_, kTokensAhead); line += kTokensPerLine) {
            prefetch_memory(tokens + line);
        }
    }

  private:
    static constexpr std::uint32_t kTokensPerLine = 64 / sizeof(TokenId);
    // the processor prefetches a longer row by itself
    static constexpr std::uint32_t kTokensAhead = 4 * kTokensPerLine;
    static constexpr std::size_t kRecords = kTiers;  // the place of the records in free_digest_, after the tiers

    void note_change(BlockIndex block);

    std::uint32_t tokens_per_block_;
    std::array<std::uint32_t, kTiers> slots_;
    std::vector<Block> blocks_;
    std::vector<TokenId, LineAllocator<TokenId>> tokens_;
    std::vector<BlockIndex> free_records_;
    std::array<std::vector<SlotIndex>, kTiers> free_slots_;
    std::unordered_map<BlockIndex, std::string> extras_;  // few blocks have any; never iterated
    WatchedDigest free_digest_;
    bool watched_ = false;  // a caller has asked what changes
    std::vector<BlockIndex> changed_;
};

}  // namespace kvfix
