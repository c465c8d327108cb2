#include "core/transfer.h"

#include <algorithm>

#include "core/check.h"
#include "core/evict.h"
#include "core/keep.h"
#include "core/publish.h"
#include "core/review.h"
#include "core/steps.h"

namespace kvfix::transfer {
namespace {

void gain_primary(Window& window, BlockIndex block, SlotIndex slot) {
    Block& record = window.blocks[block];
    record.slot[kPrimary] = slot;
    if (record.in_tree) {
        window.tree.gain_primary(block);
    }
}

void delivered(State& state, const Transfer& item) {
    Window& window = state.windows[item.window];
    const std::size_t to = item.kind == TransferKind::offload ? kHost : kPrimary;
    window.blocks[item.block].end_flight(to);
    --window.in_flight[to];
    if (item.kind != TransferKind::offload) {
        --window.blocks[item.source].locks[item.kind == TransferKind::copy ? kPrimary : kHost];
    }
    review(state, window, item.block);
    if (item.source != item.block) {
        review(state, window, item.source);
    }
}

// After a failed copy to host, the block in primary is as good as before.
void give_up_copy(State& state, Window& window, BlockIndex block) {
    Block& record = window.blocks[block];
    record.end_flight(kHost);
    --window.in_flight[kHost];
    keep::fall_back(state, window, block);
    if (record.has(kHost)) {
        evict::drop_host_copy(window, block);
    }
    review(state, window, block);
}

// Returns true if an owned or kept block is left undelivered.
bool failed(State& state, const Transfer& item) {
    Window& window = state.windows[item.window];
    Block& record = window.blocks[item.block];
    ++state.current.blocks_failed;
    if (item.kind == TransferKind::offload && record.has(kPrimary)) {
        give_up_copy(state, window, item.block);
        return false;
    }
    window.has_failed = true;
    const bool owned = item.kind == TransferKind::offload ? keep::has(window, item.block) : record.owners != 0;
    record.undelivered = owned;
    if (record.in_tree) {
        evict::drop(state, window, item.block);  // it is still in flight, so its record stays
    }
    delivered(state, item);  // ends the flight, and frees a private block that nobody holds
    return owned;
}

// Another sequence may have the id by now, but it cannot have the block, which stayed in flight.
bool holds(const State& state, const Waiting& waiting) {
    const Sequence* sequence = state.sequences.find(waiting.request);
    if (sequence == nullptr) {
        return false;
    }
    const HeldBlocks& held = sequence->windows[waiting.window];
    const bool reaches = waiting.beam < std::max<std::size_t>(held.tails.size(), 1) && waiting.position < held.size();
    return reaches && held.at(waiting.beam, waiting.position) == waiting.block;
}

}  // namespace

void onboard(State& state, Window& window, BlockIndex block) {
    Block& record = window.blocks[block];
    check(record.settled(kHost) && !record.has(kPrimary), "a block is onboarded that is not in host alone");
    gain_primary(window, block, evict::take_primary_slot(state, window));
    record.begin_flight(kPrimary);
    ++window.in_flight[kPrimary];
    ++record.locks[kHost];
    state.ledger.queue({TransferKind::onboard, window.index, record.slot[kHost], record.slot[kPrimary],
                        record.num_tokens, block, block});
    ++state.current.blocks_onboarded;
    publish(state, window, EventKind::updated, block, Tier::primary);
}

void copy_to_host(State& state, Window& window, BlockIndex block, SlotIndex slot) {
    Block& record = window.blocks[block];
    check(record.settled(kPrimary) && !record.has(kHost), "a block is copied down that is not in primary alone");
    check(slot != kNone, "a host slot is needed and none can be had");
    record.slot[kHost] = slot;
    record.begin_flight(kHost);
    ++window.in_flight[kHost];
    state.ledger.queue({TransferKind::offload, window.index, record.slot[kPrimary], record.slot[kHost],
                        record.num_tokens, block, block});
    ++state.current.blocks_offloaded;
}

void lock_source(State& state, Window& window, BlockIndex source, std::uint32_t copies) {
    Block& record = window.blocks[source];
    record.locks[record.settled(kPrimary) ? kPrimary : kHost] += copies;
    review(state, window, source);
}

void copy_prefix(State& state, Window& window, BlockIndex source, BlockIndex destination, std::uint32_t tokens) {
    const Block& record = window.blocks[source];
    const std::size_t from = record.settled(kPrimary) ? kPrimary : kHost;
    check(record.locks[from] != 0, "a copy reads a slot that nothing holds");
    Block& target = window.blocks[destination];
    target.begin_flight(kPrimary);
    ++window.in_flight[kPrimary];
    const TransferKind kind = from == kPrimary ? TransferKind::copy : TransferKind::onboard;
    state.ledger.queue({kind, window.index, record.slot[from], target.slot[kPrimary], tokens, destination, source});
    ++(from == kPrimary ? state.current.blocks_copied : state.current.blocks_onboarded);
}

void wait_for_blocks(State& state, const Window& window, const Sequence& sequence, std::size_t positions) {
    if (window.in_flight[kPrimary] == 0) {
        return;
    }
    const HeldBlocks& held = sequence.windows[window.index];
    for (std::uint32_t position = held.left; position < std::min(positions, held.size()); ++position) {
        const std::size_t beams = position < held.shared.size() ? 1 : held.tails.size();
        for (std::uint32_t beam = 0; beam < beams; ++beam) {
            if (const BlockIndex block = held.at(beam, position); window.blocks[block].in_flight(kPrimary)) {
                state.ledger.wait({window.index, beam, position, block, sequence.id()});
            }
        }
    }
}

TransferBatch take(State& state) {
    TransferBatch out{.ticket = state.ledger.take(), .items = {}};
    if (out.ticket == TransferLedger::kNothing) {
        return out;
    }
    const std::vector<Transfer>& items = state.ledger.items(out.ticket);
    out.items.reserve(items.size());
    for (const Transfer& item : items) {
        const Window& window = state.windows[item.window];
        out.items.push_back({item.kind, item.slot_src, item.slot_dst, item.tokens, id_of(window, item.block),
                             window.config.window_size});
    }
    return out;
}

void complete(State& state, Ticket ticket) {
    for (const Transfer& item : state.ledger.end(ticket).items) {
        delivered(state, item);
    }
}

std::vector<RequestId> fail(State& state, Ticket ticket) {
    const TransferLedger::Taken ended = state.ledger.end(ticket);
    std::vector<RequestId> hurt;
    for (const Transfer& item : ended.items) {
        KVFIX_STEP();
        if (failed(state, item)) {
            keep::for_each_keeper(state.windows[item.window], item.block, [&](RequestId id) { hurt.push_back(id); });
        }
    }
    for (const Waiting& waiting : ended.waiting) {
        KVFIX_STEP();
        const BlockStore& blocks = state.windows[waiting.window].blocks;
        if (blocks[waiting.block].undelivered && holds(state, waiting)) {
            hurt.push_back(waiting.request);
        }
    }
    std::ranges::sort(hurt);
    hurt.erase(std::unique(hurt.begin(), hurt.end()), hurt.end());
    return hurt;
}

}  // namespace kvfix::transfer
