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
    std::map<BlockId, Place> places;
    for (const Held& one : held_by(*live)) {
        places.emplace(one.id, one.place);
    }
    std::vector<BlockId> ids;
    bool flying = false;
    for (const auto& [id, place] : places) {
        ids.push_back(id);
        flying = flying || memory_.at(place).flying;
    }
    tell([&] { return "pin request " + text(live->id()); });
    const auto outcome = twins_.change([&](BlockManager& manager) { return manager.pin_blocks_by_id(ids); });
    // The copy of a resumed request's own block, in host alone for now, may not be pinned either.
    promise(outcome || flying, "a request's blocks cannot be pinned");
    if (!outcome) {
        return;
    }
    promise(outcome.answer.size() == ids.size(), "not every held block is pinned once");
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const Place& held = places.at(ids[i]);
        const Place pinned{held.window, outcome.answer[i].tier, number(outcome.answer[i].slot)};
        promise(memory_.at(held).flying ? pinned.tier == Tier::host : pinned == held,
                "a block is pinned where it is not");
        remember_pin(ids[i], pinned);
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
