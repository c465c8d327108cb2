#include "fuzz/world/memory.h"

#include <algorithm>

namespace kvfix::world {

std::string name(const Place& place) {
    return (place.tier == Tier::primary ? "primary slot " : "host slot ") + text(place.slot) + " of window " +
           text(place.window);
}

Memory::Memory(const BlockManagerConfig& config) {
    const Slot empty{.cells = std::vector<Cell>(config.tokens_per_block), .pinned = {}};
    for (const WindowConfig& window : config.windows) {
        sizes_.push_back(window.window_size);
        slots_.push_back(
            {std::vector<Slot>(window.blocks_primary, empty), std::vector<Slot>(window.blocks_host, empty)});
    }
}

std::size_t Memory::window_of(WindowSize size) const {
    const auto found = std::ranges::find(sizes_, size);
    promise(found != sizes_.end(), "a window that the manager does not have");
    return static_cast<std::size_t>(found - sizes_.begin());
}

Slot& Memory::at(const Place& place) {
    auto& tier = slots_.at(place.window)[static_cast<std::size_t>(place.tier)];
    promise(place.slot < tier.size(), [&] { return "there is no " + name(place); });
    return tier[place.slot];
}

void Memory::write(const Place& place, std::uint32_t offset, const Cell& cell, BlockId block_id) {
    Slot& slot = at(place);
    promise(!slot.flying || offset >= slot.flying_tokens,
            [&] { return name(place) + " is written, and a transfer will write there"; });
    if (slot.pins != 0) {
        promise(slot.pinned_id == block_id, [&] { return name(place) + " is pinned and belongs to another block"; });
        slot.pinned[offset] = cell;
    }
    slot.cells[offset] = cell;
}

void Memory::spoil(const Holder& holder) {
    const auto spoil_all = [&](std::vector<Cell>& cells) {
        for (Cell& cell : cells) {
            if (cell.writer == holder.writer && cell.position >= holder.position) {
                cell.content = kSpoiled;
            }
        }
    };
    for (auto& window : slots_) {
        for (auto& tier : window) {
            for (Slot& slot : tier) {
                spoil_all(slot.cells);
                spoil_all(slot.pinned);
            }
        }
    }
    for (auto& [ticket, flight] : flights_) {
        for (Flight::Copy& copy : flight.copies) {
            spoil_all(copy.cells);
        }
    }
}

Place Memory::source_of(const TransferItem& item) const {
    return {window_of(item.window_size), item.kind == TransferKind::onboard ? Tier::host : Tier::primary,
            number(item.slot_src)};
}

Place Memory::destination_of(const TransferItem& item) const {
    return {window_of(item.window_size), item.kind == TransferKind::offload ? Tier::host : Tier::primary,
            number(item.slot_dst)};
}

void Memory::depart(Flight& flight, const TransferItem& item) {
    const Place from = source_of(item);
    const Place to = destination_of(item);
    Slot& source = at(from);
    Slot& destination = at(to);
    promise(!source.flying, [&] { return name(from) + " is read before its own bytes are there"; });
    promise(!destination.flying, [&] { return name(to) + " is the destination of two transfers"; });
    promise(destination.locks == 0, [&] { return name(to) + " is overwritten while a transfer reads it"; });
    promise(destination.pins == 0, [&] { return name(to) + " is pinned, and a transfer overwrites it"; });
    promise(item.kind != TransferKind::offload || source.pins == 0 || source.pinned_id == item.block_id,
            [&] { return name(from) + " is pinned, and offloaded for another block"; });
    promise(item.tokens >= 1 && item.tokens <= source.cells.size(), "a transfer of no tokens, or of more than a block");
    destination.flying = true;
    destination.flying_tokens = item.tokens;
    if (item.kind != TransferKind::offload) {
        ++source.locks;
    }
    flight.copies.push_back(
        {item.kind, from, to, item.block_id, {source.cells.begin(), source.cells.begin() + item.tokens}, false});
}

void Memory::land(Ticket ticket, Random* lost) {
    Flight flight = std::move(flights_.at(ticket));
    flights_.erase(ticket);
    for (const Flight::Copy& copy : flight.copies) {
        Slot& source = at(copy.source);
        if (copy.kind != TransferKind::offload) {
            --source.locks;
            promise(
                copy.source_held || std::ranges::equal(copy.cells, std::span(source.cells).first(copy.cells.size())),
                [&] { return name(copy.source) + " changed while a transfer read it"; });
        }
        Slot& destination = at(copy.destination);
        destination.flying = false;
        std::ranges::copy(copy.cells, destination.cells.begin());
        if (lost != nullptr && !lost->one_in(3)) {
            for (std::size_t offset = lost->below(copy.cells.size()); offset < copy.cells.size(); ++offset) {
                destination.cells[offset] = {mixed(++garbage_), 0, 0};
            }
        }
    }
    if (lost != nullptr) {
        std::ranges::for_each(flight.holders, [&](const Holder& holder) { spoil(holder); });
    }
}

void Memory::pin(const Place& place, BlockId id) {
    Slot& slot = at(place);
    promise(!slot.flying, [&] { return name(place) + " is pinned before its bytes are there"; });
    if (slot.pins++ == 0) {
        slot.pinned_id = id;
        slot.pinned = slot.cells;
    }
    promise(slot.pinned_id == id, [&] { return name(place) + " is pinned for two blocks"; });
}

void Memory::unpin(const Place& place) {
    Slot& slot = at(place);
    promise(slot.pinned == slot.cells, [&] { return name(place) + " changed while it was pinned"; });
    --slot.pins;
}

std::uint64_t Memory::flying(std::size_t window, Tier tier) const {
    const auto& slots = slots_[window][static_cast<std::size_t>(tier)];
    return static_cast<std::uint64_t>(std::ranges::count_if(slots, &Slot::flying));
}

}  // namespace kvfix::world
