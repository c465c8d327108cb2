#include "core/pins.h"

#include <exception>
#include <utility>

#include "core/block_manager.h"
#include "core/pin.h"

namespace kvfix {
namespace {

std::vector<HeldPin> in_primary(const State& state, std::span<const BlockId> ids) {
    std::vector<HeldPin> out;
    for (const BlockId id : ids) {
        const auto [window, block] = place_of(state, id);
        out.push_back({id, window->blocks[block].slot[kPrimary], Tier::primary});
    }
    return out;
}

}  // namespace

Pins::Pins(Pins&& other) noexcept
    : home_(other.home_),
      anchor_(std::move(other.anchor_)),
      held_(std::move(other.held_)),
      released_(std::exchange(other.released_, true)) {}

void Pins::end() noexcept {
    if (anchor_ == nullptr || home_.left()) {
        return;
    }
    try {
        release();
    } catch (const std::exception&) {  // somebody has already ended these pins
    }
    anchor_ = nullptr;
}

void Pins::release() {
    home_.check("these pins");
    const std::lock_guard guard(anchor_->mutex);
    if (!std::exchange(released_, true) && anchor_->manager != nullptr) {
        anchor_->manager->unpin(held_);
    }
}

bool Pins::released() const {
    home_.check("these pins");
    const std::lock_guard guard(anchor_->mutex);
    return released_ || anchor_->manager == nullptr;
}

// ------------------------------------------------------------------------------------------------ of a manager

BlockManager::~BlockManager() {
    if (anchor_home_.left()) {
        return;  // another thread of the parent may have held the mutex when it forked
    }
    const std::lock_guard guard(anchor_->mutex);
    anchor_->manager = nullptr;
}

Pins BlockManager::pins_of(RequestId id) {
    const ManagerGuard guard(mutex_);
    return {anchor_, in_primary(state_, pin::of_request(state_, id))};
}

Pins BlockManager::pins_by_id(std::span<const BlockId> ids) {
    const ManagerGuard guard(mutex_);
    const std::vector<PinnedSlot> slots = pin::by_id(state_, ids);
    std::vector<HeldPin> held;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        held.push_back({ids[i], slots[i].slot, slots[i].tier});
    }
    return {anchor_, std::move(held)};
}

Pins BlockManager::pins_by_hash(std::span<const BlockHash> hashes, std::optional<Tier> tier, WindowSize window_size,
                                const RequestPtr& request) {
    std::vector<HeldPin> held;
    for (const auto& found : find_and_pin_blocks_by_hash(hashes, tier, true, window_size, request)) {
        if (found) {
            held.push_back({found->block_id, found->slot, found->tier});
        }
    }
    return {anchor_, std::move(held)};
}

void BlockManager::unpin(std::span<const HeldPin> pins) {
    const ManagerGuard guard(mutex_);
    pin::end(state_, pins);
}

}  // namespace kvfix
