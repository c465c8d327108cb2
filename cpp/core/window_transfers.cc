// Slots between the queueing of a copy and its end.
#include "core/check.h"
#include "core/window_pool.h"

namespace kvfix {

void WindowPool::onboard(BlockIndex block) {
    Block& record = store[block];
    check(record.settled(kHost) && !record.has(kPrimary), "a block is onboarded that is not in host alone");
    if (store.slots_free(kPrimary) == 0) {
        evict_primary();
    }
    gain_primary(block, store.take_slot(kPrimary));
    record.begin_flight(kPrimary);
    ++in_flight_[kPrimary];
    ++record.locks[kHost];
    services_.ledger.queue(
        {TransferKind::onboard, window, record.slot[kHost], record.slot[kPrimary], record.num_tokens, block, block});
    ++services_.counters.blocks_onboarded;
    publish(EventKind::updated, block, Tier::primary);
}

void WindowPool::lock_source(BlockIndex source, std::uint32_t copies) {
    Block& record = store[source];
    record.locks[record.settled(kPrimary) ? kPrimary : kHost] += copies;
    review(source);
}

void WindowPool::copy_prefix(BlockIndex source, BlockIndex destination, std::uint32_t tokens) {
    Block& record = store[source];
    const std::size_t from = record.settled(kPrimary) ? kPrimary : kHost;
    check(record.locks[from] != 0, "a copy reads a slot that nothing holds");
    Block& target = store[destination];
    target.begin_flight(kPrimary);
    ++in_flight_[kPrimary];
    const TransferKind kind = from == kPrimary ? TransferKind::copy : TransferKind::onboard;
    services_.ledger.queue({kind, window, record.slot[from], target.slot[kPrimary], tokens, destination, source});
    ++(from == kPrimary ? services_.counters.blocks_copied : services_.counters.blocks_onboarded);
}

void WindowPool::delivered(const Transfer& transfer) {
    const std::size_t to = transfer.kind == TransferKind::offload ? kHost : kPrimary;
    store[transfer.block].end_flight(to);
    --in_flight_[to];
    if (transfer.kind != TransferKind::offload) {
        --store[transfer.source].locks[transfer.kind == TransferKind::copy ? kPrimary : kHost];
    }
    review(transfer.block);
    if (transfer.source != transfer.block) {
        review(transfer.source);
    }
}

bool WindowPool::failed(const Transfer& transfer) {
    ++services_.counters.blocks_failed;
    has_failed_ = true;
    const bool owned = transfer.kind != TransferKind::offload && store[transfer.block].owners != 0;
    store[transfer.block].undelivered = owned;
    if (store[transfer.block].in_tree) {
        drop(transfer.block);  // it is still in flight, so its record stays
    }
    delivered(transfer);  // ends the flight; a private block that nobody holds is freed
    return owned;
}

}  // namespace kvfix
