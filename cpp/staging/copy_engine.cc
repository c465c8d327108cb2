#include "staging/copy_engine.h"

#include <algorithm>
#include <stdexcept>

namespace kvfix {

CopyEngine::CopyEngine(std::shared_ptr<Device> device, std::size_t transfers_max)
    : device_(std::move(device)), transfers_max_(transfers_max) {
    if (transfers_max == 0) {
        throw std::invalid_argument("CopyEngine: transfers_max is 0; at least 1");
    }
}

CopyEngine::~CopyEngine() {
    for (const InFlight& transfer : in_flight_) {
        try {
            transfer.fence->wait();
        } catch (const DeviceError&) {  // a destructor has no caller to report to
        }
    }
}

TransferId CopyEngine::submit(std::span<const CopySpan> spans, const CopyOrder& order, StreamHandle stream) {
    return submit([&] { device_->copy_batch(spans, order.source, stream); }, order, stream);
}

TransferId CopyEngine::submit(const std::function<void()>& enqueue, const CopyOrder& order, StreamHandle stream) {
    Lock lock(mutex_);
    make_room(lock);
    const std::shared_ptr<Fence> fence = spare_fence();
    if (order.after) {
        device_->make_wait(stream, *order.after);
    }
    try {
        enqueue();
        fence->raise(stream);
        if (order.before) {
            device_->make_wait(*order.before, fence->event());
        }
    } catch (...) {
        lock.unlock();
        device_->synchronize(stream);  // some copies may be running, and the caller gets its memory back with the error
        throw;
    }
    in_flight_.push_back({next_id_, fence});
    return next_id_++;
}

void CopyEngine::make_room(Lock& lock) {
    retire_oldest();
    if (in_flight_.size() < transfers_max_) {
        return;
    }
    retire_ended();
    waits_ += in_flight_.size() == transfers_max_ ? 1 : 0;
    while (in_flight_.size() == transfers_max_) {
        await(in_flight_.front(), lock);
        retire_ended();
    }
}

// Waits without the lock, so that others can ask and submit meanwhile.
void CopyEngine::await(InFlight transfer, Lock& lock) {
    std::string failure;
    lock.unlock();
    try {
        device_->wait(transfer.fence->event());
    } catch (const DeviceError& error) {
        failure = error.what();
    }
    transfer.fence.reset();
    lock.lock();
    if (!failure.empty()) {
        failures_.emplace(transfer.id, failure);
    }
}

// Each question is a call to the driver, so while there is room only the oldest are asked.
void CopyEngine::retire_oldest() {
    while (!in_flight_.empty() && has_ended(in_flight_.front())) {
        keep_fence(in_flight_.front());
        in_flight_.pop_front();
    }
}

// Transfers on different streams may end in any order.
void CopyEngine::retire_ended() {
    for (auto transfer = in_flight_.begin(); transfer != in_flight_.end();) {
        if (!has_ended(*transfer)) {
            ++transfer;
            continue;
        }
        keep_fence(*transfer);
        transfer = in_flight_.erase(transfer);
    }
}

// An event is used again only when its transfer has ended and nobody waits for it any more.
void CopyEngine::keep_fence(InFlight& ended) {
    if (!failures_.contains(ended.id) && ended.fence.use_count() == 1) {
        fences_.push_back(std::move(ended.fence));
    }
}

bool CopyEngine::has_ended(const InFlight& transfer) {
    if (failures_.contains(transfer.id)) {
        return true;
    }
    try {
        return transfer.fence->passed();
    } catch (const DeviceError& error) {
        failures_.emplace(transfer.id, error.what());
        return true;
    }
}

std::shared_ptr<Fence> CopyEngine::spare_fence() {
    if (fences_.empty()) {
        return std::make_shared<Fence>(device_);
    }
    std::shared_ptr<Fence> fence = std::move(fences_.back());
    fences_.pop_back();
    return fence;
}

const CopyEngine::InFlight* CopyEngine::find(TransferId id) const {
    if (id == 0 || id >= next_id_) {
        throw std::invalid_argument("CopyEngine: transfer " + std::to_string(id) + " was never submitted");
    }
    const auto found = std::ranges::find(in_flight_, id, &InFlight::id);
    return found == in_flight_.end() ? nullptr : &*found;
}

void CopyEngine::throw_if_failed(TransferId id) const {
    if (const auto failure = failures_.find(id); failure != failures_.end()) {
        throw DeviceError(failure->second);
    }
}

bool CopyEngine::done(TransferId id) {
    const std::lock_guard guard(mutex_);
    const InFlight* transfer = find(id);
    const bool ended = transfer == nullptr || has_ended(*transfer);
    throw_if_failed(id);
    return ended;
}

void CopyEngine::wait(TransferId id) {
    Lock lock(mutex_);
    if (const InFlight* transfer = find(id)) {
        await(*transfer, lock);
    }
    throw_if_failed(id);
}

std::uint64_t CopyEngine::waits() const {
    const std::lock_guard guard(mutex_);
    return waits_;
}

std::size_t CopyEngine::in_flight() const {
    const std::lock_guard guard(mutex_);
    return in_flight_.size();
}

}  // namespace kvfix
