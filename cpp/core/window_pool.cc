#include "core/window_pool.h"

#include "core/check.h"
#include "core/pause_point.h"

namespace kvfix {

WindowPool::WindowPool(std::uint32_t index, PoolServices services, std::uint64_t id_base)
    : store(services.config.windows[index].blocks_primary, services.config.windows[index].blocks_host,
            services.config.tokens_per_block),
      tree(store, services.config.hash_bits, services.config.seed),
      config(services.config.windows[index]),
      block_id_base(id_base),
      window(index),
      services_(services),
      primary_queue_(store.size()),
      host_redundant_queue_(config.blocks_host != 0 ? store.size() : 0),
      host_only_queue_(config.blocks_host != 0 ? store.size() : 0) {
    if (services.events.wanted()) {
        tree.keep_hashes();
    }
}

// ------------------------------------------------------------------------------------------------ owners

void WindowPool::claim(BlockIndex block) {
    Block& record = store[block];
    if (record.owners++ == 0) {
        leave_queues(block);
        stop_clock(block);
    }
}

void WindowPool::let_go(BlockIndex block) {
    Block& record = store[block];
    check(record.owners != 0, "a block without owners is let go");
    if (--record.owners == 0) {
        KVFIX_PAUSE("release.unowned");
        review(block);
    }
}

BlockIndex WindowPool::allocate(Priority priority, std::optional<std::uint32_t> duration_ms) {
    if (store.slots_free(kPrimary) == 0) {
        evict_primary();
    }
    return make_private(store.take_slot(kPrimary), priority, duration_ms);
}

BlockIndex WindowPool::take_over(BlockIndex source, Priority priority, std::optional<std::uint32_t> duration_ms) {
    check(store[source].in_tree && !store[source].held_primary() && store[source].children == kNone,
          "a block that somebody needs is taken over");
    const SlotIndex slot = detach_primary(source);
    if (store[source].has(kHost)) {
        review_host(source);
        publish(EventKind::updated, source, Tier::host);
    } else {
        drop(source);
    }
    return make_private(slot, priority, duration_ms);
}

BlockIndex WindowPool::make_private(SlotIndex slot, Priority priority, std::optional<std::uint32_t> duration_ms) {
    const BlockIndex block = store.acquire();
    Block& record = store[block];
    record.slot[kPrimary] = slot;
    record.owners = 1;
    set_retention(block, priority, duration_ms);
    return block;
}

// ------------------------------------------------------------------------------------------------ queues

void WindowPool::review(BlockIndex block) {
    review_primary(block);
    if (config.blocks_host != 0) {
        review_host(block);
    }
    const Block& record = store[block];
    if (!record.has(kPrimary) && !record.has(kHost)) {
        forget_duration(block);
        store.release(block);
    }
}

void WindowPool::review_primary(BlockIndex block) {
    const Block& record = store[block];
    if (!record.has(kPrimary)) {
        return;
    }
    const bool queued = primary_queue_.contains(block);
    if (record.held_primary()) {
        if (queued) {
            primary_queue_.remove(block);
        }
    } else if (!record.in_tree) {
        store.give_slot(kPrimary, detach_primary(block));
    } else if (!queued) {
        primary_queue_.push(block, record.priority);
        start_clock(block);
    }
}

void WindowPool::review_host(BlockIndex block) {
    Block& record = store[block];
    if (!record.has(kHost)) {
        return;
    }
    EvictionQueue& group = record.has(kPrimary) ? host_redundant_queue_ : host_only_queue_;
    EvictionQueue& other = record.has(kPrimary) ? host_only_queue_ : host_redundant_queue_;
    if (other.contains(block)) {
        other.remove(block);
    }
    if (record.held_host()) {
        if (group.contains(block)) {
            group.remove(block);
        }
    } else if (!record.in_tree) {
        store.give_slot(kHost, record.slot[kHost]);
        record.slot[kHost] = kNone;
    } else if (!group.contains(block)) {
        group.push(block, record.priority);
    }
}

void WindowPool::leave_queues(BlockIndex block) {
    if (primary_queue_.contains(block)) {
        primary_queue_.remove(block);
    }
    if (config.blocks_host != 0 && host_only_queue_.contains(block)) {
        host_only_queue_.remove(block);
    }
}

void WindowPool::requeue(BlockIndex block, EvictionQueue& queue) {
    if (queue.contains(block)) {
        queue.remove(block);
        queue.push(block, store[block].priority);
    }
}

// ------------------------------------------------------------------------------------------------ pins

void WindowPool::pin(BlockIndex block, std::size_t tier) {
    ++store[block].pins[tier];
    review(block);
}

void WindowPool::unpin(BlockIndex block, std::size_t tier) {
    check(store[block].pins[tier] != 0, "a block that is not pinned is unpinned");
    --store[block].pins[tier];
    review(block);
}

// ------------------------------------------------------------------------------------------------ retention

void WindowPool::set_retention(BlockIndex block, Priority priority, std::optional<std::uint32_t> duration_ms) {
    Block& record = store[block];
    if (record.has_duration) {
        forget_duration(block);
    }
    if (duration_ms) {
        record.has_duration = true;
        duration_ms_[block] = *duration_ms;
    }
    if (record.priority != priority) {
        record.priority = priority;
        requeue(block, primary_queue_);
        if (config.blocks_host != 0) {
            requeue(block, host_redundant_queue_);
            requeue(block, host_only_queue_);
        }
        publish(EventKind::updated, block, record.has(kPrimary) ? Tier::primary : Tier::host);
    }
}

void WindowPool::start_clock(BlockIndex block) {
    if (store[block].has_duration && !deadlines_.contains(block)) {
        const Deadline deadline{now_ms_ + duration_ms_.at(block), clocks_started_++, block};
        deadlines_.emplace(block, deadline);
        expiring_.insert(deadline);
    }
}

void WindowPool::stop_clock(BlockIndex block) {
    if (!store[block].has_duration) {
        return;
    }
    if (const auto running = deadlines_.find(block); running != deadlines_.end()) {
        expiring_.erase(running->second);
        deadlines_.erase(running);
    }
}

void WindowPool::forget_duration(BlockIndex block) {
    stop_clock(block);
    if (store[block].has_duration) {
        duration_ms_.erase(block);
        store[block].has_duration = false;
    }
}

void WindowPool::advance_time(std::int64_t now_ms) {
    now_ms_ = now_ms;
    while (!expiring_.empty() && expiring_.begin()->at_ms <= now_ms) {
        set_retention(expiring_.begin()->block, kPriorityDefault, std::nullopt);
    }
}

// ------------------------------------------------------------------------------------------------ events

void WindowPool::publish(EventKind kind, BlockIndex block, Tier tier, std::optional<std::int64_t> lora_id) {
    const Block& record = store[block];
    if (!services_.events.wanted() || !record.in_tree || record.num_tokens != store.tokens_per_block()) {
        return;
    }
    BlockEvent event{.kind = kind,
                     .block_hash = tree.block_hash(block),
                     .parent_hash = std::nullopt,
                     .tokens = {},
                     .lora_id = lora_id,
                     .tier = tier,
                     .priority = record.priority,
                     .window_size = config.window_size};
    if (!is_root(record.parent)) {
        event.parent_hash = tree.block_hash(record.parent);
    }
    if (kind == EventKind::stored) {
        const auto tokens = store.content(block);
        event.tokens.assign(tokens.begin(), tokens.end());
    }
    services_.events.record(std::move(event));
}

}  // namespace kvfix
