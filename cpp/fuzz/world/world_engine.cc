// The engine and the copy engine: what they write, and what must be in the slots.
#include <algorithm>
#include <set>

#include "fuzz/world/world.h"

namespace kvfix::world {

std::vector<World::Held> World::held_by(const Live& live) {
    const std::size_t blocks = (live.length + block_tokens() - 1) / block_tokens();
    const std::size_t beams = live.beams();
    const RequestId id = live.id();
    constexpr std::int32_t kNeverWritten = -77;
    std::vector<std::int32_t> table(windows() * beams * 2 * blocks, kNeverWritten);
    const auto offsets = twins_.look([&](BlockManager& manager) {
        manager.copy_batch_block_offsets({table.data(), windows(), beams, blocks}, {&id, 1},
                                         static_cast<std::uint32_t>(beams), 0, {});
        return Nothing{};
    });
    promise(bool(offsets), "a request's offsets are refused");
    std::vector<Held> held;
    for (std::size_t window = 0; window < windows(); ++window) {
        const auto ids = twins_.look([&](BlockManager& manager) {
            return manager.get_batch_cache_block_ids({&id, 1}, twins_.config().windows[window].window_size);
        });
        promise(ids && ids.answer.size() == 1 && ids.answer[0].size() == beams,
                "a request's block ids are not a table");
        for (std::size_t beam = 0; beam < beams; ++beam) {
            const std::int32_t* keys = &table[(window * beams + beam) * 2 * blocks];
            const std::vector<std::int64_t>& row = ids.answer[0][beam];
            promise(row.size() == blocks, "a request has too few blocks, or too many");
            for (std::uint32_t block = 0; block < blocks; ++block) {
                promise(keys[block] == keys[blocks + block], "keys and values lie in different slots");
                promise((row[block] == -1) == (keys[block] == -1), "ids and offsets disagree about what is held");
                if (row[block] != -1) {
                    const auto slot = static_cast<std::uint32_t>(keys[block]);
                    held.push_back({static_cast<std::uint32_t>(beam),
                                    block,
                                    {window, Tier::primary, slot},
                                    BlockId{static_cast<std::uint64_t>(row[block])}});
                    ids_seen_.emplace(held.back().id, window);
                }
            }
        }
    }
    expect_table(live, held);
    return held;
}

// Exactly the blocks that have left a window are gone. Beams share exactly the prompt's whole blocks.
void World::expect_table(const Live& live, const std::vector<Held>& held) const {
    std::vector<std::set<std::uint32_t>> blocks(windows());
    std::map<std::pair<std::size_t, std::uint32_t>, std::set<std::uint32_t>> slots;
    for (const Held& one : held) {
        blocks[one.place.window].insert(one.block);
        slots[{one.place.window, one.block}].insert(one.place.slot);
    }
    const std::uint32_t count = (live.length + block_tokens() - 1) / block_tokens();
    for (std::size_t window = 0; window < windows(); ++window) {
        const std::uint32_t left = std::min(live.left[window], count);
        promise(blocks[window].size() == count - left && (left == count || *blocks[window].begin() == left), [&] {
            return "request " + text(live.id()) + " must have let " + text(live.left[window]) +
                   " blocks go, and has let " + text(count - blocks[window].size()) + " go";
        });
    }
    for (const auto& [block, places] : slots) {
        const bool shared = (block.second + 1) * block_tokens() <= live.prompt_length();
        promise(places.size() == (shared ? 1 : live.beams()), "beams share a block that they write, or not the prompt");
    }
}

// One step of the engine: takes the copies that wait, then computes some of the reserved positions.
void World::run_step() {
    take();
    for (auto& [id, live] : live_) {
        if (!random_.one_in(4)) {
            compute(live);
        }
    }
    verify_all();
}

void World::take() {
    const auto outcome = twins_.change([](BlockManager& manager) { return manager.take_transfers(); });
    promise(bool(outcome), "take_transfers refuses");
    const TransferBatch& batch = outcome.answer;
    tell([&] { return "take ticket " + text(batch.ticket) + " of " + text(batch.items.size()); });
    for (const TransferItem& item : batch.items) {
        tell([&] {
            return "  copy " + text(item.tokens) + " tokens of " + name(memory_.source_of(item)) + " to " +
                   name(memory_.destination_of(item)) + ", block " + text(number(item.block_id));
        });
    }
    promise((batch.ticket == 0) == batch.items.empty(), "a ticket of nothing, or none of something");
    queued_ = false;
    const auto onboards = std::ranges::count(batch.items, TransferKind::onboard, &TransferItem::kind);
    promise(static_cast<std::uint64_t>(onboards) == onboards_promised_, "blocks_onboarded is not what is onboarded");
    onboards_promised_ = 0;
    if (batch.items.empty()) {
        return;
    }
    std::set<Place> destinations;
    for (const TransferItem& item : batch.items) {
        destinations.insert(memory_.destination_of(item));
    }
    std::set<Place> places;
    std::vector<Holder> holders;
    for (const auto& [id, live] : live_) {
        for (const Held& held : held_by(live)) {
            places.insert(held.place);
            if (destinations.contains(held.place)) {
                holders.push_back({live.writer, held.block * block_tokens()});
            }
        }
    }
    memory_.take(batch, std::move(holders), [&](const Place& place) { return places.contains(place); });
    tally_.copies += batch.items.size();
}

// Computes some of the positions that are not computed yet, first to last.
void World::compute(Live& live) {
    const std::uint32_t end = random_.one_in(3) ? random_.between(live.written, live.length) : live.length;
    if (end == live.written) {
        return;
    }
    verify(live);  // the engine reads everything that the request holds
    const std::uint32_t begin = live.written;
    const std::vector<Held> blocks = held_by(live);
    const auto awaited = [&](const Held& held) {
        const Slot& slot = memory_.at(held.place);
        return slot.flying && held.block * block_tokens() + slot.flying_tokens > begin;
    };
    if (std::ranges::any_of(blocks, awaited)) {
        return;  // it comes back from host with positions that were reserved but not computed
    }
    for (const Held& held : blocks) {
        for (std::uint32_t offset = 0; offset < block_tokens(); ++offset) {
            const std::uint32_t position = held.block * block_tokens() + offset;
            if (position >= begin && position < end) {
                const std::uint64_t content =
                    position >= live.spoiled_from ? kSpoiled : live.content(position, held.beam);
                memory_.write(held.place, offset, {content, live.writer, position}, held.id);
            }
        }
    }
    live.written = end;
}

// Checks that the slots still hold what the request has computed or reuses, whatever others did since.
void World::verify(const Live& live) {
    if (queued_) {
        return;  // some of what it reuses may still have to arrive
    }
    const std::uint32_t sound = std::min(live.written, live.spoiled_from);
    for (const Held& held : held_by(live)) {
        const Slot& slot = memory_.at(held.place);
        const std::uint32_t begin = held.block * block_tokens();
        for (std::uint32_t offset = slot.flying ? slot.flying_tokens : 0;
             offset < block_tokens() && begin + offset < sound; ++offset) {
            ++tally_.cells;
            promise(slot.cells[offset].content == live.content(begin + offset, held.beam), [&] {
                return "token " + text(begin + offset) + " of request " + text(live.id()) + " is not in " +
                       name(held.place) + ", where it must be";
            });
        }
    }
}

void World::verify_all() {
    for (const auto& [id, live] : live_) {
        verify(live);
    }
}

void World::end_ticket() {
    if (memory_.flights().empty() || patience_ == 0 || !random_.one_in(patience_)) {
        return;
    }
    const auto ticket = std::next(memory_.flights().begin(), random_.below(memory_.flights().size()))->first;
    end(ticket, random_.one_in(5));
}

// If copies are as good as immediate, nothing is on its way between two calls.
void World::settle() {
    if (patience_ != 0) {
        return;
    }
    if (queued_) {
        take();
    }
    while (!memory_.flights().empty()) {
        end(memory_.flights().begin()->first, random_.one_in(64));
    }
}

void World::note_spoiled(Live& live, const Flight& flight) {
    for (const Holder& holder : flight.holders) {
        if (holder.writer == live.writer) {
            live.spoiled_from = std::min(live.spoiled_from, holder.position);
            source_.remember(live.truth);  // it will be asked for again
        }
    }
}

void World::end(Ticket ticket, bool fail) {
    tell([&] { return (fail ? "fail ticket " : "complete ticket ") + text(ticket); });
    const Flight& flight = memory_.flights().at(ticket);
    if (!fail) {
        promise(bool(twins_.change([&](BlockManager& manager) {
                    manager.complete(ticket);
                    return Nothing{};
                })),
                "a ticket cannot be completed");
        memory_.land(ticket, nullptr);
        verify_all();
        return;
    }
    std::set<RequestId> hurt;
    for (auto& [id, live] : live_) {
        for (const Held& held : held_by(live)) {
            if (std::ranges::any_of(flight.copies, [&](const auto& copy) { return copy.destination == held.place; })) {
                hurt.insert(id);
            }
        }
        note_spoiled(live, flight);
    }
    for (auto& [id, away] : suspended_) {
        note_spoiled(away.live, flight);  // blocks on their way left the window, so the request could be suspended
    }
    const auto outcome = twins_.change([&](BlockManager& manager) { return manager.fail(ticket); });
    promise(bool(outcome), "a ticket cannot be failed");
    std::set<RequestId> named(outcome.answer.begin(), outcome.answer.end());
    promise(named.size() == outcome.answer.size(), "fail() names somebody twice");
    note_lost(flight, named);
    promise(named == hurt, "fail() does not name those who hold what did not come");
    memory_.land(ticket, &random_);
    ++tally_.tickets_failed;
    verify_all();
}

}  // namespace kvfix::world
