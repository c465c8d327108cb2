// One attention window's blocks: who may have a slot, what is evicted for it, what stays findable.
// Not thread-safe: the manager's lock is held around every call.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/block_store.h"
#include "core/config.h"
#include "core/digest.h"
#include "core/event_log.h"
#include "core/eviction_queue.h"
#include "core/request.h"
#include "core/reuse_tree.h"
#include "core/stats.h"
#include "core/transfers.h"

namespace kvfix {

// What all windows of a manager share.
struct PoolServices {
    const BlockManagerConfig& config;
    TransferLedger& ledger;
    EventLog& events;
    CacheCounters& counters;  // of the current iteration
};

class WindowPool {
  public:
    WindowPool(std::uint32_t window, PoolServices services, std::uint64_t block_id_base);

    BlockStore store;
    ReuseTree tree;
    const WindowConfig config;
    const std::uint64_t block_id_base;
    const std::uint32_t window;  // index among the manager's windows

    // Primary slots that allocate() could hand out.
    std::uint64_t allocatable() const { return std::uint64_t{store.slots_free(kPrimary)} + primary_queue_.size(); }
    bool evictable(BlockIndex block) const { return primary_queue_.contains(block); }

    // --- owners. Each call leaves the block where it belongs (queue, free list, or held).
    void claim(BlockIndex block);
    void let_go(BlockIndex block);
    // A private block with a primary slot and one owner. Evicts; the caller has checked allocatable().
    BlockIndex allocate(Priority priority, std::optional<std::uint32_t> duration_ms);
    // The unowned, unheld, childless block gives its primary slot to a new private block.
    BlockIndex take_over(BlockIndex source, Priority priority, std::optional<std::uint32_t> duration_ms);

    // --- transfers
    void onboard(BlockIndex block);
    // Queues a copy of the locked source's first tokens into the (private, owned) destination.
    void copy_prefix(BlockIndex source, BlockIndex destination, std::uint32_t tokens);
    // Holds the source for that many copies to come; it leaves the eviction queues.
    void lock_source(BlockIndex source, std::uint32_t copies);
    void delivered(const Transfer& transfer);
    // True when an owned block is left undelivered.
    bool failed(const Transfer& transfer);

    // Whether some primary slot may be without the bytes that it is said to hold.
    bool bytes_outstanding() const { return in_flight_[kPrimary] != 0 || has_failed_; }

    // --- tree
    // The private block's content is in the store; it becomes findable below `parent`.
    void enter_tree(BlockIndex block, ParentRef parent, std::optional<std::int64_t> lora_id);
    // Removes the block and its descendants from the tree.
    void drop(BlockIndex block);
    void drop_everything();

    // --- pins
    void pin(BlockIndex block, std::size_t tier);
    void unpin(BlockIndex block, std::size_t tier);

    // --- retention
    void set_retention(BlockIndex block, Priority priority, std::optional<std::uint32_t> duration_ms);
    void advance_time(std::int64_t now_ms);

    WindowStats stats() const;
    void mix_into(Digest& digest) const;
    // Verifies the pool alone. `owners[block]`: how many sequences say that they hold it.
    void check_invariants(std::span<const std::uint32_t> owners) const;

  private:
    // After any change of owners, pins, locks, flight or membership: queues the block, frees its slots, or neither.
    void review(BlockIndex block);
    void review_primary(BlockIndex block);
    void review_host(BlockIndex block);
    void leave_queues(BlockIndex block);
    void requeue(BlockIndex block, EvictionQueue& queue);
    void start_clock(BlockIndex block);
    void stop_clock(BlockIndex block);
    void forget_duration(BlockIndex block);
    BlockIndex make_private(SlotIndex slot, Priority priority, std::optional<std::uint32_t> duration_ms);
    void gain_primary(BlockIndex block, SlotIndex slot);

    void evict_primary();
    void prefetch_victims(BlockIndex victim) const;
    bool evict_host();
    SlotIndex take_host_slot();
    SlotIndex detach_primary(BlockIndex block);
    std::uint64_t drop_counted(BlockIndex block);
    void unlink(BlockIndex block);
    void publish(EventKind kind, BlockIndex block, Tier tier, std::optional<std::int64_t> lora_id = std::nullopt);
    void check_slots() const;
    void check_queues() const;
    void check_tree() const;

    PoolServices services_;
    EvictionQueue primary_queue_;
    EvictionQueue host_redundant_queue_;  // blocks that also have a primary slot
    EvictionQueue host_only_queue_;

    std::array<std::uint64_t, kTiers> in_flight_{0, 0};
    bool has_failed_ = false;  // ever

    // Retention: durations of blocks that have one, and when those that are cached expire.
    std::int64_t now_ms_ = 0;
    std::unordered_map<BlockIndex, std::uint32_t> duration_ms_;  // lookups only; never iterated
    struct Deadline {
        std::int64_t at_ms;
        std::uint64_t started;  // order in which the clocks began: breaks ties the same way everywhere
        BlockIndex block;
        auto operator<=>(const Deadline&) const = default;
    };
    std::unordered_map<BlockIndex, Deadline> deadlines_;  // lookups only; never iterated
    std::set<Deadline> expiring_;
    std::uint64_t clocks_started_ = 0;
};

}  // namespace kvfix
