// One attention window's books: which block has which slot, what can be found, what is evicted next. Plain data: the
// verbs (hold, evict, transfer, retain, pin) change it while the manager's lock is held.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/block_store.h"
#include "core/config.h"
#include "core/eviction_queue.h"
#include "core/newcomers.h"
#include "core/recent_keys.h"
#include "core/reuse_tree.h"
#include "core/set_digest.h"
#include "core/types.h"

namespace kvfix {

// Durations of the blocks that have one, and when cached blocks expire.
struct RetentionClocks {
    struct Deadline {
        std::int64_t at_ms;
        std::uint64_t started;  // order in which the clocks began; breaks ties the same way everywhere
        BlockIndex block;
        auto operator<=>(const Deadline&) const = default;
        std::uint64_t digest() const { return digest_of_words(at_ms, started, block); }
    };

    std::unordered_map<BlockIndex, std::uint32_t> duration_ms;  // lookups only; never iterated
    std::unordered_map<BlockIndex, Deadline> deadlines;         // lookups only; never iterated
    std::set<Deadline> expiring;
    std::uint64_t started = 0;
    SetDigest digest;  // of `expiring`
};

// The digest's last value of each record.
struct BlockDigests {
    std::vector<std::uint64_t> members;  // empty until someone asks for a digest
    SetDigest sum;
};

// A block that suspended sequences keep: how many do, and the tier in which one lock keeps it for all of them.
struct KeptBlock {
    std::uint32_t sequences;
    std::size_t tier;
};

struct Window {
    Window(const BlockManagerConfig& manager, std::uint32_t window_index, std::uint64_t id_base)
        : config(manager.windows[window_index]),
          index(window_index),
          block_id_base(id_base),
          blocks(config.blocks_primary, config.blocks_host, manager.tokens_per_block),
          tree(blocks, manager.hash_bits, manager.seed, config.window_size.has_value()),
          primary_queue(blocks.size()),
          host_redundant_queue(has_host() ? blocks.size() : 0, 3),
          host_only_queue(EvictionQueue::beside(host_redundant_queue)),
          host_newcomer_queue(EvictionQueue::beside(host_redundant_queue, 2)) {
        if (has_host() && manager.host_admission == HostAdmission::adaptive) {
            gone.emplace(blocks.size());
            newcomers.emplace(config.blocks_host);
        }
    }

    const WindowConfig config;
    const std::uint32_t index;  // among the manager's windows
    const std::uint64_t block_id_base;

    BlockStore blocks;
    ReuseTree tree;  // refers to `blocks`
    EvictionQueue primary_queue;
    EvictionQueue host_redundant_queue;  // blocks that also have a primary slot
    EvictionQueue host_only_queue;       // over the same blocks; a block that is only in host has no primary slot
    EvictionQueue host_newcomer_queue;   // those of them that are newcomers; with adaptive alone
    std::array<std::uint64_t, kTiers> in_flight{0, 0};
    std::uint32_t chunked = 0;                           // sequences whose prompts are not reserved to their ends
    std::uint64_t slots_kept = 0;                        // primary slots, free or cached, for the rest of those prompts
    bool has_failed = false;                             // a transfer has failed, at any time
    std::unordered_map<BlockIndex, KeptBlock> kept;      // lookups only; never iterated
    std::set<std::pair<BlockIndex, RequestId>> keepers;  // which sequences keep each block in `kept`
    std::optional<RecentKeys> gone;                      // keys of full blocks that were dropped; with adaptive alone
    std::optional<Newcomers> newcomers;                  // the same
    RetentionClocks clocks;
    BlockDigests block_digests;

    bool has_host() const { return config.blocks_host != 0; }
    // The queue for a block of the tree that has a settled host slot.
    EvictionQueue& host_queue_for(const Block& block) {
        if (block.has(kPrimary)) {
            return host_redundant_queue;
        }
        return newcomers && !block.asked_again ? host_newcomer_queue : host_only_queue;
    }
    std::array<EvictionQueue*, 3> host_queues() {
        return {&host_redundant_queue, &host_only_queue, &host_newcomer_queue};
    }
    // Host slots that eviction could take.
    std::uint64_t evictable_in_host() const {
        return std::uint64_t{host_redundant_queue.size()} + host_only_queue.size() + host_newcomer_queue.size();
    }
    // Positions that a token looks back; kNone for full attention.
    std::uint32_t reach() const { return config.window_size.value_or(kNone); }
    // Primary slots that hold::allocate() could hand out, and those of them that anybody may have. Pins do not look at
    // slots_kept: if they hold cached blocks, more slots may be kept than there are.
    std::uint64_t there() const { return std::uint64_t{blocks.slots_free(kPrimary)} + primary_queue.size(); }
    std::uint64_t allocatable() const { return there() - std::min(there(), slots_kept); }
    // Whether the block waits in its queue until the blocks that follow it are gone. One that a sequence has gone on
    // without does not.
    bool waits(BlockIndex block) const { return !blocks[block].outside; }
    bool evictable(BlockIndex block) const { return primary_queue.contains(block); }
    // Whether some primary slot may lack the bytes that it is said to hold.
    bool bytes_outstanding() const { return in_flight[kPrimary] != 0 || has_failed; }
};

// The windows of a manager, ascending by size. None ever moves, because its tree refers to its blocks.
class Windows {
  public:
    template <class Of>
    class Iterator {
      public:
        using value_type = Of;
        using difference_type = std::ptrdiff_t;
        Iterator() = default;
        explicit Iterator(const std::unique_ptr<Window>* at) : at_(at) {}
        Of& operator*() const { return **at_; }
        Iterator& operator++() {
            ++at_;
            return *this;
        }
        Iterator operator++(int) { return Iterator(at_++); }
        bool operator==(const Iterator&) const = default;

      private:
        const std::unique_ptr<Window>* at_ = nullptr;
    };

    explicit Windows(const BlockManagerConfig& manager);

    std::size_t size() const { return owned_.size(); }
    Window& operator[](std::size_t index) { return *owned_[index]; }
    const Window& operator[](std::size_t index) const { return *owned_[index]; }
    Iterator<Window> begin() { return Iterator<Window>(owned_.data()); }
    Iterator<Window> end() { return Iterator<Window>(owned_.data() + owned_.size()); }
    Iterator<const Window> begin() const { return Iterator<const Window>(owned_.data()); }
    Iterator<const Window> end() const { return Iterator<const Window>(owned_.data() + owned_.size()); }

  private:
    std::vector<std::unique_ptr<Window>> owned_;
};

}  // namespace kvfix
