#include "core/review.h"

#include "core/retain.h"

namespace kvfix {
namespace {

// A private block has no parent that must hear of it.
void free_private(Window& window, BlockIndex block, std::size_t tier) {
    Block& record = window.blocks[block];
    window.blocks.give_slot(tier, record.slot[tier]);
    record.slot[tier] = kNone;
}

void review_primary(State& state, Window& window, BlockIndex block) {
    const Block& record = window.blocks[block];
    if (!record.has(kPrimary)) {
        return;
    }
    const bool queued = window.primary_queue.contains(block);
    if (record.held_primary()) {
        if (queued) {
            window.primary_queue.remove(block);
        }
    } else if (!record.in_tree) {
        if (queued) {
            window.primary_queue.remove(block);
        }
        free_private(window, block, kPrimary);
    } else if (!queued) {
        window.primary_queue.push(block, record.priority);
        retain::start_clock(state, window, block);
    }
}

void requeue_in(EvictionQueue& queue, BlockIndex block, Priority priority) {
    if (queue.contains(block)) {
        queue.remove(block);
        queue.push(block, priority);
    }
}

}  // namespace

void review(State& state, Window& window, BlockIndex block) {
    review_primary(state, window, block);
    if (window.has_host()) {
        review_host(window, block);
    }
    const Block& record = window.blocks[block];
    if (!record.has(kPrimary) && !record.has(kHost)) {
        retain::forget(window, block);
        window.blocks.release(block);
    }
}

void review_host(Window& window, BlockIndex block) {
    const Block& record = window.blocks[block];
    if (!record.has(kHost)) {
        return;
    }
    EvictionQueue& group = window.host_queue_for(record);
    for (EvictionQueue* other : window.host_queues()) {
        if (other != &group && other->contains(block)) {
            other->remove(block);
        }
    }
    if (record.held_host()) {
        if (group.contains(block)) {
            group.remove(block);
        }
    } else if (!record.in_tree) {
        free_private(window, block, kHost);
    } else if (!group.contains(block)) {
        group.push(block, record.priority);
    }
}

void leave_queues(Window& window, BlockIndex block) {
    if (window.primary_queue.contains(block)) {
        window.primary_queue.remove(block);
    }
    if (!window.has_host()) {
        return;
    }
    for (EvictionQueue* queue : {&window.host_only_queue, &window.host_newcomer_queue}) {
        if (queue->contains(block)) {
            queue->remove(block);
        }
    }
}

void requeue(Window& window, BlockIndex block) {
    const Priority priority = window.blocks[block].priority;
    requeue_in(window.primary_queue, block, priority);
    if (window.has_host()) {
        for (EvictionQueue* queue : window.host_queues()) {
            requeue_in(*queue, block, priority);
        }
    }
}

}  // namespace kvfix
