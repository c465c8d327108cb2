// The books: numbers that must add up, events that must tell the truth, time, and calls that must be refused.
#include <algorithm>
#include <limits>
#include <set>

#include "fuzz/world/world.h"

namespace kvfix::world {
namespace {

constexpr std::int64_t kLatest = std::int64_t{1} << 62;

}  // namespace

// The slots that growth or admission could have, by window.
std::vector<std::uint64_t> World::allocatable() {
    const auto stats = twins_.look([](BlockManager& manager) { return manager.get_kv_cache_stats(); });
    std::vector<std::uint64_t> slots;
    for (const WindowStats& window : stats.answer.windows) {
        const std::uint64_t there = window.primary.free + window.primary.cached;
        promise(window.kept <= there, "more is kept than is there");
        slots.push_back(there - window.kept);
    }
    return slots;
}

void World::read_events() {
    const auto outcome = twins_.change([](BlockManager& manager) { return manager.get_latest_events(); });
    const auto stats = twins_.look([](BlockManager& manager) { return manager.get_kv_cache_stats(); });
    promise(outcome && outcome.answer.size() <= twins_.config().events_max, "more events wait than may");
    tally_.events += outcome.answer.size();
    mirror_.read(outcome.answer, stats.answer.events_dropped);
}

// A prompt finds what the events report: all of it if everything is in place, and never more.
void World::expect_matches_mirror() {
    read_events();
    if (!mirror_.complete()) {
        return;
    }
    const Ask ask = request_for(source_.prompt(4 * block_tokens()));
    const std::uint32_t tokens = ask.request->num_tokens();
    const std::vector<BlockHash> hashes = hashes_of(*ask.request);
    const auto most_up_to = [&](std::uint32_t blocks) {
        const auto allowed = [&] {
            for (std::size_t window = 0; window < windows(); ++window) {
                if (!mirror_.allows(window, hashes, blocks)) {
                    return false;
                }
            }
            return true;
        };
        while (!allowed()) {
            --blocks;
        }
        return blocks;
    };
    const std::uint32_t whole = most_up_to(static_cast<std::uint32_t>(hashes.size()));
    const std::uint32_t most = most_up_to((tokens - 1) / block_tokens());
    const std::uint32_t found = analyze(ask.request);
    promise(found / block_tokens() <= most, "more blocks are found than events tell of");
    promise(!all_settled() || found / block_tokens() == most, "fewer blocks are found than events tell of");
    expect_tiers(ask.request, std::span(hashes).first(found / block_tokens()));
    const bool any_part = windows() == 1 && all_settled() && twins_.config().partial_reuse &&
                          twins_.config().copy_on_partial_reuse && !source_.draws_spans() && whole == most &&
                          allocatable().front() > hashes.size() + ask.request->beam_width + 1;
    if (any_part) {
        const auto parent = whole == 0 ? std::nullopt : std::optional(hashes[whole - 1]);
        const std::span<const TokenId> rest = std::span(ask.request->tokens).subspan(whole * block_tokens());
        const std::uint32_t begins = parent ? mirror_.longest_beginning(0, parent, rest) : 0;
        promise(found >= std::min(whole * block_tokens() + begins, tokens - 1),
                "a longer beginning of a block was there");
    }
}

// What a prompt finds lies in the tiers that the events told.
void World::expect_tiers(const RequestPtr& request, std::span<const BlockHash> found) {
    if (windows() != 1 || twins_.config().windows[0].window_size || !all_settled()) {
        return;
    }
    const auto told = static_cast<std::uint64_t>(
        std::ranges::count_if(found, [&](const BlockHash& hash) { return mirror_.tier_of(0, hash) == Tier::primary; }));
    const auto reuse = twins_.look([&](BlockManager& manager) { return manager.analyze_prefix_reuse(request); }).answer;
    const std::uint64_t parts = reuse.tokens % block_tokens() != 0 ? 1 : 0;  // it may lie in either
    promise(reuse.blocks_primary + reuse.blocks_host == found.size() + parts, "blocks are found and not counted");
    promise(told <= reuse.blocks_primary && reuse.blocks_primary <= told + parts,
            "a block is in another tier than events tell of");
}

// Free, cached, owned and in flight slots are all slots. For every slot that is owned or in flight, this world knows
// why.
void World::expect_conserved() {
    if (queued_) {
        return;
    }
    std::set<Place> owned;
    for (const auto& [id, live] : live_) {
        for (const Held& held : held_by(live)) {
            owned.insert(held.place);
        }
    }
    for (const Pin& pin : pins_) {
        owned.insert(pin.place);
    }
    for (const auto& [ticket, flight] : memory_.flights()) {
        for (const Flight::Copy& copy : flight.copies) {
            if (copy.kind != TransferKind::offload) {
                owned.insert(copy.source);
            }
        }
    }
    std::erase_if(owned, [&](const Place& place) { return memory_.at(place).flying; });
    std::uint64_t kept = 0;
    for (const auto& [id, away] : suspended_) {
        kept += away.blocks.size();
    }
    const auto stats = twins_.look([](BlockManager& manager) { return manager.get_kv_cache_stats(); });
    for (std::size_t window = 0; window < windows(); ++window) {
        for (const Tier tier : {Tier::primary, Tier::host}) {
            const WindowStats& both = stats.answer.windows[window];
            const TierStats& told = tier == Tier::primary ? both.primary : both.host;
            const auto ours = static_cast<std::uint64_t>(std::ranges::count_if(
                owned, [&](const Place& place) { return place.window == window && place.tier == tier; }));
            promise(told.free + told.cached + told.owned + told.in_flight == told.blocks,
                    "free, cached, owned and in flight are not all");
            promise(told.in_flight == memory_.flying(window, tier), "slots are in flight that no ticket brings");
            // We do not know in which tier a suspended request keeps a block, only that it keeps it once.
            promise(told.owned >= ours && told.owned <= ours + kept, [&] {
                return text(told.owned) + " slots are owned, but " + text(ours) + " have a reason to be, in window " +
                       text(window);
            });
        }
    }
    promise(stats.answer.sequences == live_.size(), "another number of requests live");
    promise(stats.answer.sequences_suspended == suspended_.size(), "another number of requests is suspended");
}

void World::pass_time() {
    switch (random_.below(32)) {
        case 0:
            tell([] { return std::string("reset"); });
            promise(bool(twins_.change([](BlockManager& manager) {
                        manager.reset_reuse_state();
                        return Nothing{};
                    })),
                    "reset_reuse_state refuses");
            return;
        case 1:
            promise(bool(twins_.change([](BlockManager& manager) {
                        manager.refresh_blocks();
                        return Nothing{};
                    })),
                    "refresh_blocks refuses");
            return;
        case 2:
            now_ms_ = random_.one_in(16) ? kLatest
                                         : now_ms_ + std::min<std::int64_t>(random_.below(1U << 31), kLatest - now_ms_);
            break;
        default:
            now_ms_ = std::min(now_ms_ + random_.below(4), kLatest);
    }
    tell([&] { return "the time is " + std::to_string(now_ms_); });
    const auto outcome = twins_.change([&](BlockManager& manager) {
        manager.advance_time(now_ms_);
        return Nothing{};
    });
    promise(bool(outcome), "time does not pass");
}

void World::refused(const char* what, const std::function<void(BlockManager&)>& call) {
    const auto outcome = twins_.change([&](BlockManager& manager) {
        call(manager);
        return Nothing{};
    });
    promise(!outcome, what);
}

void World::misuse() {
    const Live* live = any_live();
    RequestId stranger = random_.one_in(2) ? random_.below(8) : random_.word();
    while (live_.contains(stranger) || suspended_.contains(stranger)) {
        ++stranger;
    }
    const auto batch = [](BlockManager& manager, std::vector<RequestPtr> requests) {
        manager.add_sequence_batch(requests, std::nullopt);
    };
    const RequestPtr fresh = request_for(source_.prompt(2 * block_tokens())).request;
    switch (random_.below(8)) {
        case 0:
            return refused("two of one id", [&](BlockManager& m) { batch(m, {fresh, fresh}); });
        case 1:
            return refused("more beams than may be", [&](BlockManager& m) {
                const std::uint32_t beams = twins_.config().beam_width_max + (random_.one_in(2) ? 1 : 1U << 31);
                batch(m, {fresh, std::make_shared<const Request>(stranger, fresh->tokens, beams, std::nullopt, Salt(),
                                                                 std::vector<ExtraKey>(), std::nullopt)});
            });
        case 2:
            return refused("time beyond its end", [&](BlockManager& m) {
                m.advance_time(random_.one_in(2) ? kLatest + 1 : std::numeric_limits<std::int64_t>::max());
            });
        case 3:
            return refused("time that runs back", [&](BlockManager& m) {
                m.advance_time(random_.one_in(2) ? now_ms_ - 1 : std::numeric_limits<std::int64_t>::min());
            });
        case 4:
            return refused("a ticket that was never taken", [&](BlockManager& m) {
                random_.one_in(2) ? m.complete(1'000'000'000) : static_cast<void>(m.fail(1'000'000'000));
            });
        case 5:
            return misuse_growth(live, stranger);
        case 6:
            return live == nullptr
                       ? void()
                       : refused("an id that lives", [&](BlockManager& m) { batch(m, {fresh, live->request}); });
        default:
            return misuse_tables(live == nullptr ? stranger : live->id());
    }
}

void World::misuse_growth(const Live* live, RequestId stranger) {
    const bool is_stranger = live == nullptr || random_.one_in(3);
    if (is_stranger) {
        return refused("growth of a stranger", [&](BlockManager& m) {
            const std::vector<RequestId> ids =
                live == nullptr ? std::vector{stranger} : std::vector{live->id(), stranger};
            m.add_tokens(ids, std::vector<std::uint32_t>(ids.size(), 1), std::nullopt, std::nullopt);
        });
    }
    if (random_.one_in(2)) {
        return refused("growth twice in one call", [&](BlockManager& m) {
            const std::vector<RequestId> ids{live->id(), live->id()};
            m.add_tokens(ids, std::vector<std::uint32_t>(2, 1), std::nullopt, std::nullopt);
        });
    }
    refused("growth beyond all numbers", [&](BlockManager& m) {
        const RequestId id = live->id();
        m.add_tokens({&id, 1}, std::vector<std::uint32_t>{random_.one_in(2) ? ~0U : ~0U / 2}, std::nullopt,
                     std::nullopt);
    });
}

void World::misuse_tables(RequestId id) {
    std::vector<std::int32_t> table(64);
    const auto refused = [&](const char* what, const OffsetTable& shape, std::uint32_t beams, std::size_t row) {
        promise(!twins_.look([&](BlockManager& manager) {
            manager.copy_batch_block_offsets(shape, {&id, 1}, beams, row, {});
            return Nothing{};
        }),
                what);
    };
    refused("a table of too many windows", {table.data(), windows() + 1, 1, 1}, 1, 0);
    refused("a row beyond the table", {table.data(), windows(), 4, 1}, 1, 4);
    refused("a row far beyond the table", {table.data(), windows(), 4, 1}, 1, ~std::size_t{0});
    refused("more beams than rows", {table.data(), windows(), 1, 1}, ~0U, 0);
}

}  // namespace kvfix::world
