// A block manager written without a thought of threads: each call looks, decides and then acts on what it saw. It is
// right as long as one thread uses it, and it stops at the same pause points as ours. The interleavings of
// test_interleavings.cc break it, which shows that they are the dangerous ones.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/pause_point.h"

namespace kvfix::testing {

class UnlockedDouble {
  public:
    static constexpr int kNowhere = -1;

    struct Block {
        int owners = 0;
        int pins = 0;
        int slot_host = kNowhere;
        int slot_primary = kNowhere;
    };

    UnlockedDouble(std::size_t blocks, int slots) : blocks_(blocks) {
        for (int slot = 0; slot < slots; ++slot) {
            free_primary_.push_back(slot);
            free_host_.push_back(slot);
        }
    }

    Block& operator[](std::size_t block) { return blocks_[block]; }
    const std::vector<int>& free_primary() const { return free_primary_; }
    const std::vector<int>& free_host() const { return free_host_; }

    // Peeks at the next free slot, then claims it.
    void allocate(std::size_t block) {
        const int slot = free_primary_.front();
        KVFIX_PAUSE("evict.picked");
        std::erase(free_primary_, slot);
        blocks_[block].slot_primary = slot;
        ++blocks_[block].owners;
    }

    void store_in_host(std::size_t block) {
        blocks_[block].slot_host = free_host_.front();
        free_host_.erase(free_host_.begin());
    }

    // The owner or the pin, whichever ends last, frees the slot.
    void let_go(std::size_t block) {
        --blocks_[block].owners;
        KVFIX_PAUSE("release.unowned");
        free_if_unused(block);
    }
    void unpin(std::size_t block) {
        --blocks_[block].pins;
        free_if_unused(block);
    }

    // A remote reader calls this; it will read the slot that it gets.
    int pin_in_host(std::size_t block) {
        const int slot = blocks_[block].slot_host;
        KVFIX_PAUSE("pin.found");
        ++blocks_[block].pins;
        return slot;
    }
    // Copies an unpinned block to primary and gives up its host slot.
    void onboard(std::size_t block) {
        const bool movable = blocks_[block].pins == 0;
        KVFIX_PAUSE("admit.planned");
        if (movable) {
            allocate(block);
            free_host_.push_back(blocks_[block].slot_host);
            blocks_[block].slot_host = kNowhere;
        }
    }

  private:
    void free_if_unused(std::size_t block) {
        if (blocks_[block].owners == 0 && blocks_[block].pins == 0) {
            free_primary_.push_back(blocks_[block].slot_primary);
        }
    }

    std::vector<Block> blocks_;
    std::vector<int> free_primary_;
    std::vector<int> free_host_;
};

}  // namespace kvfix::testing
