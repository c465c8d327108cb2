// Blocks ordered by key, the smallest on top; any block can leave. The owner keeps each block's position: the heap
// calls `place(block, position)` whenever one moves.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/steps.h"
#include "core/types.h"

namespace kvfix {

class EvictionHeap {
  public:
    struct Entry {
        std::uint64_t key;
        BlockIndex block;
    };

    bool empty() const { return entries_.empty(); }
    const Entry& top() const { return entries_.front(); }
    std::span<const Entry> entries() const { return entries_; }

    template <class Place>
    void push(Entry entry, Place&& place) {
        entries_.push_back(entry);
        rise(entries_.size() - 1, entry, place);
    }

    template <class Place>
    void remove(std::size_t position, Place&& place) {
        const Entry last = entries_.back();
        entries_.pop_back();
        if (position == entries_.size()) {
            return;
        }
        if (position != 0 && last.key < entries_[parent(position)].key) {
            rise(position, last, place);
        } else {
            sink(position, last, place);
        }
    }

  private:
    static std::size_t parent(std::size_t position) { return (position - 1) / 2; }

    template <class Place>
    void put(std::size_t position, Entry entry, Place& place) {
        KVFIX_STEP();
        entries_[position] = entry;
        place(entry.block, static_cast<std::uint32_t>(position));
    }

    template <class Place>
    void rise(std::size_t position, Entry entry, Place& place) {
        for (; position != 0 && entry.key < entries_[parent(position)].key; position = parent(position)) {
            put(position, entries_[parent(position)], place);
        }
        put(position, entry, place);
    }

    template <class Place>
    void sink(std::size_t position, Entry entry, Place& place) {
        for (std::size_t child = 2 * position + 1; child < entries_.size(); child = 2 * position + 1) {
            if (child + 1 < entries_.size() && entries_[child + 1].key < entries_[child].key) {
                ++child;
            }
            if (entry.key < entries_[child].key) {
                break;
            }
            put(position, entries_[child], place);
            position = child;
        }
        put(position, entry, place);
    }

    std::vector<Entry> entries_;
};

}  // namespace kvfix
