// State that the threads of the stress program share: the manager, and tables that say what is true of it at this
// moment.
#pragma once

#include <array>
#include <atomic>

#include "core/block_manager.h"
#include "tests/stress_harness.h"

namespace kvfix::stress {

inline constexpr std::uint32_t kTokensPerBlock = 4;
inline constexpr std::array<std::uint32_t, 2> kWindows{16, 64};
inline constexpr std::uint32_t kBlocksPrimary = 48;
inline constexpr std::uint32_t kBlocksHost = 24;

// A thread writes an entry after it has gained what the entry says, and clears it before it gives that up. So two
// entries that contradict each other are never a matter of timing.
class SlotTable {
  public:
    struct Slot {
        std::atomic<std::uint32_t> pins = 0;
        std::atomic<Ticket> writer = 0;  // the transfer that writes it
    };

    Slot& at(WindowSize window, Tier tier, SlotIndex slot) {
        expect(number(slot) < (tier == Tier::primary ? kBlocksPrimary : kBlocksHost), "a slot that does not exist");
        return slots_[window == kWindows[0] ? 0 : 1][static_cast<std::size_t>(tier)][number(slot)];
    }
    static void pin(Slot& slot) {
        ++slot.pins;
        expect(slot.writer == 0, "a slot is pinned while a transfer writes it");
    }
    static void unpin(Slot& slot) {
        expect(slot.writer == 0, "a transfer writes a pinned slot");
        --slot.pins;
    }
    static void begin_write(Slot& slot, Ticket ticket) {
        Ticket nobody = 0;
        expect(slot.writer.compare_exchange_strong(nobody, ticket), "two transfers write one slot");
        expect(slot.pins == 0, "a transfer writes a pinned slot");
    }
    static void end_write(Slot& slot) { slot.writer = 0; }

  private:
    std::array<std::array<std::array<Slot, kBlocksPrimary>, kTiers>, kWindows.size()> slots_;
};

// The owner of each private block.
class PrivateBlocks {
  public:
    void claim(BlockId block, RequestId owner) {
        RequestId nobody = 0;
        expect(owners_.at(number(block)).compare_exchange_strong(nobody, owner),
               "a new block is another sequence's already");
    }
    void release(BlockId block) { owners_.at(number(block)) = 0; }

  private:
    std::array<std::atomic<RequestId>, kWindows.size() * (kBlocksPrimary + kBlocksHost)> owners_{};
};

inline BlockManagerConfig make_config() {
    BlockManagerConfig config;
    config.tokens_per_block = kTokensPerBlock;
    for (const std::uint32_t window : kWindows) {
        config.windows.push_back({.window_size = window, .blocks_primary = kBlocksPrimary, .blocks_host = kBlocksHost});
    }
    config.events_max = 64;
    return config;
}

struct Arena {
    BlockManager manager{make_config()};
    SlotTable slots;
    PrivateBlocks private_blocks;
    Progress progress;
};

}  // namespace kvfix::stress
