#include "tests/shadow_memory.h"

#include <algorithm>
#include <utility>

namespace kvfix::testing {
namespace {

constexpr Cell kUndelivered = 1;  // a copy was to come

}  // namespace

std::string name(const Place& place) {
    return std::string(place.tier == Tier::primary ? "primary" : "host") + " slot " +
           std::to_string(number(place.slot)) + " of window " + std::to_string(place.window);
}

ShadowMemory::ShadowMemory(const BlockManagerConfig& config) : tokens_per_block_(config.tokens_per_block) {
    const auto empty = [&](std::uint32_t blocks) { return std::vector<Slot>(blocks, Slot(tokens_per_block_)); };
    for (const WindowConfig& window : config.windows) {
        windows_.push_back(window.window_size);
        slots_.push_back({empty(window.blocks_primary), empty(window.blocks_host)});
    }
}

std::size_t ShadowMemory::window_index(WindowSize size) const {
    const auto found = std::ranges::find(windows_, size);
    promise(found != windows_.end(), "the manager names a window that it does not have");
    return static_cast<std::size_t>(found - windows_.begin());
}

ShadowMemory::Slot& ShadowMemory::slot(const Place& place) {
    auto& slots = slots_[place.window][static_cast<std::size_t>(place.tier)];
    promise(number(place.slot) < slots.size(), name(place) + " does not exist");
    return slots[number(place.slot)];
}

void ShadowMemory::spoil(RequestId writer) {
    const auto spoil_slot = [writer](Slot& written) {
        for (Written& cell : written) {
            cell.content = cell.writer == writer ? kSpoiled : cell.content;
        }
    };
    for (auto& tiers : slots_) {
        for (auto& tier : tiers) {
            std::ranges::for_each(tier, spoil_slot);
        }
    }
    for (auto& [ticket, copies] : copies_) {
        std::ranges::for_each(copies, [&](Copy& copy) { spoil_slot(copy.cells); });
    }
    for (auto& [place, pin] : pins_) {
        spoil_slot(pin.promised);
    }
}

std::optional<Ticket> ShadowMemory::bringing(const Place& place, std::uint32_t offset) const {
    for (const auto& [ticket, copies] : copies_) {
        for (const Copy& copy : copies) {
            if (copy.destination == place && offset < copy.cells.size()) {
                return ticket;
            }
        }
    }
    return std::nullopt;
}

void ShadowMemory::take(const TransferBatch& batch) {
    std::vector<Copy>& copies = copies_[batch.ticket];
    for (const TransferItem& item : batch.items) {
        const std::size_t window = window_index(item.window_size);
        Copy copy{
            .source = {window, item.kind == TransferKind::onboard ? Tier::host : Tier::primary, item.slot_src},
            .destination = {window, item.kind == TransferKind::offload ? Tier::host : Tier::primary, item.slot_dst},
            .cells = {}};
        promise(item.tokens > 0 && item.tokens <= tokens_per_block_,
                "a transfer of " + std::to_string(item.tokens) + " tokens");
        promise(!flying_.contains(copy.source), "a copy reads " + name(copy.source) + ", which is still in flight");
        promise(!pins_.contains(copy.destination), "a copy writes " + name(copy.destination) + ", which is pinned");
        promise(flying_.insert(copy.destination).second, "two copies write " + name(copy.destination));
        const Slot& source = slot(copy.source);
        copy.cells.assign(source.begin(), source.begin() + item.tokens);
        std::fill_n(slot(copy.destination).begin(), item.tokens, Written{kUndelivered, 0});
        copies.push_back(std::move(copy));
    }
}

void ShadowMemory::complete(Ticket ticket) {
    const auto ended = copies_.extract(ticket);
    for (const Copy& copy : ended.mapped()) {
        Slot& destination = slot(copy.destination);
        for (std::size_t i = 0; i < copy.cells.size(); ++i) {
            promise(destination[i].content == kUndelivered, name(copy.destination) + " was written while in flight");
        }
        if (copy.source.tier == Tier::host) {
            promise(std::ranges::equal(copy.cells, std::span(slot(copy.source)).first(copy.cells.size())),
                    name(copy.source) + " was rewritten while an onboard read it");
        }
        std::ranges::copy(copy.cells, destination.begin());
        flying_.erase(copy.destination);
    }
}

void ShadowMemory::fail(Ticket ticket) {
    const auto ended = copies_.extract(ticket);
    for (const Copy& copy : ended.mapped()) {
        flying_.erase(copy.destination);
    }
}

void ShadowMemory::pin(const Place& place, BlockId id, bool immutable) {
    promise(!in_flight(place), "a pin is granted on " + name(place) + ", which is in flight");
    Pin& pin = pins_.try_emplace(place, Pin{.id = id, .count = 0, .promised = {}}).first->second;
    promise(pin.id == id, name(place) + " is pinned for block " + std::to_string(number(pin.id)) + " and for " +
                              std::to_string(number(id)));
    ++pin.count;
    if (immutable && pin.promised.empty()) {
        pin.promised = slot(place);
    }
}

void ShadowMemory::unpin(const Place& place) {
    const auto found = pins_.find(place);
    promise(found != pins_.end(), name(place) + " is unpinned and was not pinned");
    promise(found->second.promised.empty() || found->second.promised == slot(place),
            name(place) + " changed while it was pinned");
    if (--found->second.count == 0) {
        pins_.erase(found);
    }
}

void ShadowMemory::check_owner(const Place& place, BlockId id) const {
    const auto found = pins_.find(place);
    promise(found == pins_.end() || found->second.id == id,
            name(place) + " is pinned and was given to block " + std::to_string(number(id)));
}

}  // namespace kvfix::testing
