#include "core/pin.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/errors.h"
#include "core/pause_point.h"
#include "core/review.h"

namespace kvfix::pin {
namespace {

std::string name(BlockId id) { return "block " + std::to_string(number(id)); }

// Ends one pin of each block, in that tier. All or nothing.
void end_each(State& state, std::span<const std::pair<BlockId, std::size_t>> ends) {
    std::map<std::pair<BlockId, std::size_t>, std::uint32_t> wanted;
    std::vector<BlockPlace> places;
    for (const auto& [id, from] : ends) {
        places.push_back(place_of(state, id));
        const Block& block = std::as_const(places.back().window->blocks)[places.back().block];
        const std::uint32_t pins = ++wanted[{id, from}];
        if (pins > block.pins[from]) {
            throw std::invalid_argument(name(id) + " is unpinned " + std::to_string(pins) + " times but pinned " +
                                        std::to_string(block.pins[from]) + " times in " +
                                        (from == kPrimary ? "primary" : "host"));
        }
    }
    KVFIX_PAUSE("unpin.checked");
    for (std::size_t i = 0; i < ends.size(); ++i) {
        remove(state, *places[i].window, places[i].block, ends[i].second);
    }
}

}  // namespace

void add(State& state, Window& window, BlockIndex block, std::size_t tier) {
    ++window.blocks[block].pins[tier];
    review(state, window, block);
}

void remove(State& state, Window& window, BlockIndex block, std::size_t tier) {
    check(window.blocks[block].pins[tier] != 0, "a block that is not pinned is unpinned");
    --window.blocks[block].pins[tier];
    review(state, window, block);
}

void check_settled(const State& state, const Sequence& sequence) {
    for (const Window& window : state.windows) {
        sequence.windows[window.index].for_each([&](BlockIndex block) {
            if (!window.blocks[block].settled(kPrimary)) {
                throw BlockInFlight(id_of(window, block));
            }
        });
    }
}

std::vector<BlockId> held(State& state, const Sequence& sequence) {
    std::vector<BlockId> ids;
    for (Window& window : state.windows) {
        sequence.windows[window.index].for_each([&](BlockIndex block) {
            add(state, window, block, kPrimary);
            ids.push_back(id_of(window, block));
        });
    }
    return ids;
}

std::vector<PinnedSlot> by_id(State& state, std::span<const BlockId> ids) {
    std::vector<std::pair<BlockPlace, std::size_t>> places;
    for (const BlockId id : ids) {
        const BlockPlace place = place_of(state, id);
        const Block& block = place.window->blocks[place.block];
        if (!block.settled(kPrimary) && !block.settled(kHost)) {
            throw BlockInFlight(id);
        }
        const std::size_t tier = block.settled(kPrimary) ? kPrimary : kHost;
        if (tier == kHost && !block.in_tree && block.pins[kHost] == 0) {
            throw std::invalid_argument(
                "block " + std::to_string(number(id)) +
                " is in host for its owner or a transfer alone: what may be written on in primary is not pinned there");
        }
        places.emplace_back(place, tier);
    }
    KVFIX_PAUSE("pin.found");
    std::vector<PinnedSlot> out;
    for (const auto& [place, tier] : places) {
        add(state, *place.window, place.block, tier);
        out.push_back({place.window->blocks[place.block].slot[tier], static_cast<Tier>(tier)});
    }
    return out;
}

void end_by_id(State& state, std::span<const BlockId> ids, std::optional<Tier> tier) {
    std::vector<std::pair<BlockId, std::size_t>> ends;
    for (const BlockId id : ids) {
        const BlockPlace place = place_of(state, id);
        const Block& block = std::as_const(place.window->blocks)[place.block];
        if (!tier && block.pins[kPrimary] != 0 && block.pins[kHost] != 0) {
            throw std::invalid_argument(name(id) + " is pinned in both tiers: say which with tier=");
        }
        ends.emplace_back(id, tier ? static_cast<std::size_t>(*tier) : (block.pins[kPrimary] != 0 ? kPrimary : kHost));
    }
    end_each(state, ends);
}

}  // namespace kvfix::pin
