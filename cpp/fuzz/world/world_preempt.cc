// Requests that are suspended to host and come back, and what a lost copy does to them.
#include <algorithm>
#include <set>

#include "fuzz/world/world.h"

namespace kvfix::world {

World::Away* World::any_suspended() {
    return suspended_.empty() ? nullptr : &std::next(suspended_.begin(), random_.below(suspended_.size()))->second;
}

void World::suspend() {
    Live* live = any_live();
    if (live == nullptr) {
        return;
    }
    if (queued_) {
        take();  // blocks that wait to be taken are in flight, and only the manager knows which
    }
    const std::vector<Held> held = held_by(*live);
    const bool flying = std::ranges::any_of(held, [&](const Held& one) { return memory_.at(one.place).flying; });
    Away away{.live = *live, .blocks = {}, .sure_private = {}};
    for (const Held& one : held) {
        away.blocks.insert(one.id);
        const std::uint32_t end = (one.block + 1) * block_tokens();
        const bool own = live->beams() > 1 && end > live->prompt_length();
        if (own || end > std::min(live->told, live->known)) {
            away.sure_private.insert(one.id);
        }
    }
    const auto before = allocatable();
    tell([&] { return "suspend " + text(live->id()) + " of " + text(held.size()) + " blocks"; });
    const auto stats = twins_.look([](BlockManager& manager) { return manager.get_kv_cache_stats(); });
    const bool room = std::ranges::all_of(stats.answer.windows, [&](const WindowStats& window) {
        return window.host.free + window.host.cached >= away.blocks.size();
    });
    const bool reserved = live->length >= live->prompt_length();
    const RequestId id = live->id();
    const auto outcome =
        twins_.change([&](BlockManager& manager) { return std::vector<std::uint64_t>{manager.suspend_sequence(id)}; });
    if (!outcome) {
        promise(!room || flying || !reserved || live->spoiled_from != ~0U,
                [&] { return "a request cannot be suspended: " + outcome.refused->text; });
        promise(outcome.refused->why != Refusal::in_flight || flying, "nothing of it is in flight");
        promise(outcome.refused->why != Refusal::argument || !reserved || live->spoiled_from != ~0U,
                "nothing of it was lost, and its prompt is reserved");
        promise(outcome.refused->why != Refusal::out_of_blocks || outcome.refused->needed > outcome.refused->free,
                "refused for want of host blocks that are there");
        return;
    }
    promise(!flying, "a request is suspended while its bytes are still on their way");
    promise(reserved, "a request is suspended between two chunks of its prompt");
    const auto after = allocatable();
    for (std::size_t window = 0; window < windows(); ++window) {
        promise(after[window] >= before[window], "to suspend a request costs primary blocks");
    }
    queued_ = queued_ || outcome.answer[0] != 0;
    live_.erase(id);
    suspended_.emplace(id, std::move(away));
    ++tally_.suspended;
}

void World::resume() {
    Away* away = any_suspended();
    if (away == nullptr) {
        return;
    }
    if (queued_ && random_.one_in(2)) {
        take();
    }
    const RequestId id = away->live.id();
    const auto asked = twins_.look([&](BlockManager& manager) { return manager.blocks_to_resume(id); });
    promise(bool(asked), "nobody says what it takes to resume a request");
    const auto before = allocatable();
    tell([&] { return "resume " + text(id); });
    const auto outcome =
        twins_.change([&](BlockManager& manager) { return std::vector<std::uint64_t>{manager.resume_sequence(id)}; });
    promise(!outcome || !away->lost, "a request comes back, although bytes of it were lost");
    if (!outcome) {
        const bool on_its_way = queued_ || std::ranges::any_of(memory_.flights(), [&](const auto& flight) {
                                    return std::ranges::any_of(flight.second.copies, [&](const Flight::Copy& copy) {
                                        return away->blocks.contains(copy.block_id);
                                    });
                                });
        promise(outcome.refused->why != Refusal::argument || away->lost, "a request is lost that nobody named");
        promise(outcome.refused->why != Refusal::in_flight || on_its_way, "nothing of the request is on its way");
        promise(outcome.refused->why != Refusal::out_of_blocks || outcome.refused->needed > outcome.refused->free,
                "refused for want of blocks that are there");
        return make_room();
    }
    const auto after = allocatable();
    for (std::size_t window = 0; window < windows(); ++window) {
        promise(before[window] - after[window] == asked.answer[window], "resuming takes another number of blocks");
    }
    onboards_promised_ += outcome.answer[0];
    queued_ = queued_ || outcome.answer[0] != 0;
    Live& live = live_.emplace(id, std::move(away->live)).first->second;
    live.writer = ++writers_;  // its earlier writes stay valid, even if the copies that bring them back are lost
    suspended_.erase(id);
    held_by(live);
    verify(live);
}

void World::remove_suspended() {
    Away* away = any_suspended();
    if (away == nullptr) {
        return;
    }
    const bool store = !random_.one_in(4);
    const std::uint32_t computed = reported(away->live);
    const RequestId id = away->live.id();
    tell([&] { return "remove suspended " + text(id) + (store ? ", store" : ""); });
    const auto pinned =
        twins_.change([&](BlockManager& manager) { return manager.remove_sequence(id, store, true, std::nullopt); });
    promise(!pinned && pinned.refused->why == Refusal::argument, "a suspended request's blocks are pinned in primary");
    const auto outcome = twins_.change(
        [&](BlockManager& manager) { return manager.remove_sequence(id, store, false, std::nullopt, computed); });
    promise(bool(outcome) == (computed <= away->live.length), "the end of a suspended request is refused, or is not");
    if (!outcome) {
        return;
    }
    const bool lost = away->lost;
    Live gone = std::move(away->live);
    suspended_.erase(id);
    gone.told = std::max(gone.told, computed);
    gone.truth.tokens.resize(gone.known);
    source_.remember(gone.truth);
    if (store && !lost) {
        expect_found_again(gone, std::min(gone.told, gone.known));
    }
}

// Every call that would read or change its blocks is refused until it is back.
void World::misuse_suspended() {
    const Away* away = any_suspended();
    if (away == nullptr) {
        return;
    }
    const RequestId id = away->live.id();
    const auto refused = [&](const char* what, const auto& call) {
        const auto outcome = twins_.change([&](BlockManager& manager) {
            call(manager);
            return Nothing{};
        });
        promise(!outcome && outcome.refused->why == Refusal::argument, what);
    };
    refused("a suspended request is suspended", [&](BlockManager& m) { m.suspend_sequence(id); });
    refused("a suspended request grows", [&](BlockManager& m) {
        m.add_tokens({&id, 1}, std::vector<std::uint32_t>{1}, std::nullopt, std::nullopt);
    });
    refused("a suspended request shrinks", [&](BlockManager& m) { m.rewind_kv_cache(id, 0); });
    refused("a suspended request stores", [&](BlockManager& m) { m.store_context_blocks(id, 0); });
    refused("a suspended request has block ids",
            [&](BlockManager& m) { m.get_batch_cache_block_ids({&id, 1}, twins_.config().windows[0].window_size); });
    refused("an id that is suspended is admitted",
            [&](BlockManager& m) { m.add_sequence_batch({{away->live.request}}, std::nullopt); });
    misuse_tables(id);
}

// If a suspended request is named, it has lost something that it kept. If it has lost something that nobody else can
// have, it must be named.
void World::note_lost(const Flight& flight, std::set<RequestId>& named) {
    for (auto& [id, record] : suspended_) {
        auto& away = record;  // older compilers capture no structured binding
        const auto copied = [&](const std::set<BlockId>& blocks) {
            return std::ranges::any_of(flight.copies, [&](const Flight::Copy& copy) {
                return blocks.contains(copy.block_id) && copy.kind != TransferKind::copy;
            });
        };
        // If the source of a copy is still read or pinned, it stays, and so do its bytes.
        const bool lost_its_own = std::ranges::any_of(flight.copies, [&](const Flight::Copy& copy) {
            return copy.kind == TransferKind::offload && away.sure_private.contains(copy.block_id) &&
                   memory_.at(copy.source).locks == 0 && memory_.at(copy.source).pins == 0;
        });
        const bool is_named = named.erase(id) != 0;
        promise(!is_named || copied(away.blocks), "a suspended request is named that lost nothing");
        promise(is_named || away.lost || !lost_its_own, "a suspended request lost a block and is not named");
        away.lost = away.lost || is_named;
    }
}

}  // namespace kvfix::world
