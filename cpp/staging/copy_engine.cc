#include "staging/copy_engine.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace kvfix {

CopyEngine::CopyEngine(std::shared_ptr<Device> device, std::size_t transfers_max)
    : device_(std::move(device)), transfers_max_(transfers_max) {
    if (transfers_max == 0) {
        throw std::invalid_argument("CopyEngine: transfers_max is 0; at least 1");
    }
}

CopyEngine::~CopyEngine() {
    for (InFlight& transfer : in_flight_) {
        try {
            transfer.fence->wait();
        } catch (const DeviceError&) {
            static_cast<void>(transfer.fence.release());  // the device may still record it
        }
    }
}

TransferId CopyEngine::submit(std::span<const CopySpan> spans, const CopyOrder& order, StreamHandle stream) {
    const std::lock_guard guard(mutex_);
    retire_passed();
    if (in_flight_.size() == transfers_max_) {
        ++waits_;
        in_flight_.front().fence->wait();
        retire_passed();
    }
    if (fences_.empty()) {
        fences_.push_back(std::make_unique<Fence>(device_));
    }
    if (order.after) {
        device_->make_wait(stream, *order.after);
    }
    try {
        device_->copy_batch(spans, order.source, stream);
        fences_.back()->raise(stream);
    } catch (const DeviceError&) {
        device_->synchronize(
            stream);  // part of the batch may be running; the caller gets its memory back with the error
        throw;
    }
    in_flight_.push_back({next_id_, std::move(fences_.back())});
    fences_.pop_back();
    if (order.before) {
        device_->make_wait(*order.before, in_flight_.back().fence->event());
    }
    return next_id_++;
}

// Transfers on different streams may end in any order; a fence is used again only after its own has passed.
void CopyEngine::retire_passed() {
    std::erase_if(in_flight_, [this](InFlight& transfer) {
        if (!transfer.fence->passed()) {
            return false;
        }
        fences_.push_back(std::move(transfer.fence));
        return true;
    });
}

CopyEngine::InFlight* CopyEngine::find(TransferId id) {
    if (id == 0 || id >= next_id_) {
        throw std::invalid_argument("CopyEngine: transfer " + std::to_string(id) + " was never submitted");
    }
    const auto found = std::ranges::find(in_flight_, id, &InFlight::id);
    return found == in_flight_.end() ? nullptr : &*found;
}

bool CopyEngine::done(TransferId id) {
    const std::lock_guard guard(mutex_);
    InFlight* transfer = find(id);
    return transfer == nullptr || transfer->fence->passed();
}

void CopyEngine::wait(TransferId id) {
    const std::lock_guard guard(mutex_);
    if (InFlight* transfer = find(id)) {
        transfer->fence->wait();
    }
}

std::uint64_t CopyEngine::waits() const {
    const std::lock_guard guard(mutex_);
    return waits_;
}

}  // namespace kvfix
