// Remote readers: they pin blocks, read them whenever they like, and let them go.
#include <algorithm>
#include <map>

#include "fuzz/world/world.h"

namespace kvfix::world {
namespace {

constexpr std::size_t kPinsMax = 12;  // more would only fill the pools

}  // namespace

void World::remember_pin(BlockId id, const Place& place) {
    memory_.pin(place, id);
    pins_.push_back({id, place});
    ++tally_.pins;
}

// Remembers the pins of a request that was stored: one on each block that it held, or none.
void World::remember_pins(const std::vector<BlockId>& pinned, const std::vector<Held>& held, bool pin) {
    std::map<BlockId, Place> places;
    for (const Held& one : held) {
        places.emplace(one.id, one.place);
    }
    promise(pinned.size() == (pin ? places.size() : 0), "not every held block is pinned once");
    for (const BlockId id : pinned) {
        promise(places.contains(id), "a block is pinned that the request did not hold");
        remember_pin(id, places.at(id));
    }
}

void World::pin_something() {
    if (pins_nothing_) {
        return;
    }
    if (pins_.size() > kPinsMax) {
        return unpin();
    }
    random_.one_in(2) ? pin_request() : pin_ids();
}

void World::pin_request() {
    Live* live = any_live();
    if (live == nullptr || queued_) {
        return;  // blocks that wait to be taken are in flight, and only the manager knows which
    }
    const std::vector<Held> held = held_by(*live);
    const bool flying = std::ranges::any_of(held, [&](const Held& one) { return memory_.at(one.place).flying; });
    tell([&] { return "pin request " + text(live->id()); });
    const auto outcome = twins_.change([&](BlockManager& manager) { return manager.pin_blocks(live->id()); });
    promise(outcome ? !flying : flying && outcome.refused->why == Refusal::in_flight,
            "a request's blocks are pinned in flight, or cannot be pinned");
    if (!outcome) {
        return;
    }
    std::map<BlockId, Place> places;
    for (const Held& one : held) {
        places.emplace(one.id, one.place);
    }
    promise(outcome.answer.size() == places.size(), "not every held block is pinned once");
    for (const BlockId id : outcome.answer) {
        promise(places.erase(id) == 1, "a block is pinned twice, or is not the request's");
    }
    for (const Held& one : held) {
        if (places.emplace(one.id, one.place).second) {
            remember_pin(one.id, one.place);
        }
    }
}

void World::pin_ids() {
    if (ids_seen_.empty() || queued_) {
        return;
    }
    std::vector<BlockId> ids(random_.between(1, 3));
    std::ranges::generate(ids, [&] { return std::next(ids_seen_.begin(), random_.below(ids_seen_.size()))->first; });
    tell([&] { return "pin block " + text(number(ids[0])) + " and " + text(ids.size() - 1) + " more"; });
    const auto outcome = twins_.change([&](BlockManager& manager) { return manager.pin_blocks_by_id(ids); });
    if (!outcome) {
        promise(outcome.refused->why == Refusal::in_flight || outcome.refused->why == Refusal::argument,
                "a pin is refused for another reason");
        return;
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
        remember_pin(ids[i], {ids_seen_.at(ids[i]), outcome.answer[i].tier, number(outcome.answer[i].slot)});
    }
}

std::vector<BlockHash> World::hashes_of(const Request& request) const {
    return block_hashes(request, hasher_, block_tokens());
}

void World::pin_hashes() {
    if (pins_nothing_) {
        return;
    }
    if (hashes_seen_.empty() || queued_) {
        return;
    }
    std::vector<BlockHash> hashes(random_.between(1, 4));
    std::ranges::generate(hashes, [&] {
        const std::size_t back = random_.below(std::min<std::size_t>(hashes_seen_.size(), 200));
        const auto stored = mirror_.any(random_);
        return stored && random_.one_in(2) ? *stored : hashes_seen_[hashes_seen_.size() - 1 - back];
    });
    if (twins_.config().hash_bits < kBlockHashBits) {
        hashes.assign(1, {random_.below(1U << twins_.config().hash_bits), 0});
    }
    const auto tier = random_.pick(std::vector<std::optional<Tier>>{std::nullopt, Tier::primary, Tier::host});
    const std::size_t window = random_.below(windows());
    const bool stop_on_miss = random_.one_in(2);
    read_events();
    tell([&] { return "pin " + text(hashes.size()) + " hashes in window " + text(window); });
    const auto outcome = twins_.change([&](BlockManager& manager) {
        return manager.find_and_pin_blocks_by_hash(hashes, tier, stop_on_miss,
                                                   twins_.config().windows[window].window_size);
    });
    promise(outcome && outcome.answer.size() == hashes.size(), "a hash gets no answer");
    bool missed = false;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
        const std::optional<PinnedBlock>& block = outcome.answer[i];
        promise(!block || !missed || !stop_on_miss, "a block is pinned behind a miss");
        const auto known = mirror_.tier_of(window, hashes[i]);
        if (mirror_.complete()) {
            promise(!block || known, "a hash is found that is in no event");
            const bool sure = known && !(missed && stop_on_miss) && all_settled() && (!tier || tier == known);
            promise(!sure || (block && block->tier == *known), "a hash is not found where events say that it is");
        }
        missed = missed || !block;
        if (block) {
            promise(!tier || block->tier == *tier, "another tier than the one asked for");
            promise(memory_.window_of(block->window_size) == window, "another window than the one asked for");
            expect_found(hashes[i], *block);
        }
    }
}

void World::expect_found(const BlockHash& hash, const PinnedBlock& block) {
    promise(block.block_hash == hash, "another hash than the one asked for");
    const Place place{memory_.window_of(block.window_size), block.tier, number(block.slot)};
    ids_seen_.emplace(block.block_id, place.window);
    remember_pin(block.block_id, place);
    if (const auto* contents = mirror_.contents(hash)) {
        const std::vector<Cell>& cells = memory_.at(place).cells;
        promise(std::ranges::equal(cells, *contents, {}, &Cell::content),
                [&] { return name(place) + " was found by its hash, and holds something else"; });
    }
}

// The result of ending a pin is known in advance, refusals included.
void World::unpin() {
    std::vector<BlockId> ids;
    for (std::uint32_t count = random_.between(1, 3); count > 0; --count) {
        if (!pins_.empty() && !random_.one_in(16)) {
            ids.push_back(random_.pick(pins_).id);
        } else if (!ids_seen_.empty()) {
            ids.push_back(std::next(ids_seen_.begin(), random_.below(ids_seen_.size()))->first);
        }
    }
    const auto tier = random_.pick(std::vector<std::optional<Tier>>{std::nullopt, Tier::primary, Tier::host});
    const auto pinned_in = [&](BlockId id, Tier in) {
        return std::ranges::any_of(pins_, [&](const Pin& pin) { return pin.id == id && pin.place.tier == in; });
    };
    std::vector<Pin> left = pins_;
    std::vector<Pin> ended;
    bool legal = true;
    for (const BlockId id : ids) {
        legal = legal && (tier || !pinned_in(id, Tier::primary) || !pinned_in(id, Tier::host));
        const Tier from = tier.value_or(pinned_in(id, Tier::primary) ? Tier::primary : Tier::host);
        const auto at =
            std::ranges::find_if(left, [&](const Pin& pin) { return pin.id == id && pin.place.tier == from; });
        legal = legal && at != left.end();
        if (legal) {
            ended.push_back(*at);
            left.erase(at);
        }
    }
    tell([&] { return "unpin " + text(ids.size()) + " blocks"; });
    const auto outcome = twins_.change([&](BlockManager& manager) {
        manager.unpin_blocks_by_id(ids, tier);
        return Nothing{};
    });
    promise(bool(outcome) == legal, legal ? "a pin cannot be ended" : "a pin that is not there is ended");
    if (legal) {
        forget_pins(ended);
    }
}

void World::forget_pins(const std::vector<Pin>& ended) {
    for (const Pin& pin : ended) {
        memory_.unpin(pin.place);
        pins_.erase(std::ranges::find(pins_, pin));
    }
}

}  // namespace kvfix::world
