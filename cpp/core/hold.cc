#include "core/hold.h"

#include "core/check.h"
#include "core/chunk.h"
#include "core/evict.h"
#include "core/pause_point.h"
#include "core/publish.h"
#include "core/retain.h"
#include "core/review.h"

namespace kvfix::hold {
namespace {

BlockIndex make_private(State& state, Window& window, SlotIndex slot, Priority priority,
                        std::optional<std::uint32_t> duration_ms) {
    const BlockIndex block = window.blocks.acquire();
    Block& record = window.blocks[block];
    record.slot[kPrimary] = slot;
    record.owners = 1;
    retain::set(state, window, block, priority, duration_ms);
    return block;
}

}  // namespace

void claim(Window& window, BlockIndex block) {
    if (window.blocks[block].owners++ == 0) {
        leave_queues(window, block);
        retain::stop_clock(window, block);
    }
}

void let_go(State& state, Window& window, BlockIndex block, bool outside) {
    Block& record = window.blocks[block];
    record.outside = outside;
    check(record.owners != 0, "a block without owners is let go");
    if (--record.owners == 0) {
        KVFIX_PAUSE("release.unowned");
        review(state, window, block);
    }
}

void let_go_all(State& state, Sequence& sequence) {
    for (Window& window : state.windows) {
        HeldBlocks& held = sequence.windows[window.index];
        chunk::end(window, held);
        held.for_each_from_last([&](BlockIndex block) { let_go(state, window, block); });
    }
}

BlockIndex allocate(State& state, Window& window, Priority priority, std::optional<std::uint32_t> duration_ms) {
    return make_private(state, window, evict::take_primary_slot(state, window), priority, duration_ms);
}

BlockIndex take_over(State& state, Window& window, BlockIndex source, Priority priority,
                     std::optional<std::uint32_t> duration_ms) {
    const Block& record = window.blocks[source];
    check(record.in_tree && !record.held_primary() && !window.tree.has_children(source),
          "a block that somebody needs is taken over");
    const SlotIndex slot = evict::detach_primary(window, source);
    if (record.has(kHost)) {
        review_host(window, source);
        publish(state, window, EventKind::updated, source, Tier::host);
    } else {
        evict::drop(state, window, source);
    }
    return make_private(state, window, slot, priority, duration_ms);
}

}  // namespace kvfix::hold
