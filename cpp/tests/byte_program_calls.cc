// The calls of a ByteProgram apart from sequences and copies: pins, time, reads and misuse.
#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>

#include "tests/byte_program.h"

namespace kvfix::testing {
namespace {

constexpr BlockId kNoBlock{std::numeric_limits<std::uint64_t>::max()};

}  // namespace

BlockId ByteProgram::any_block() {
    if (seen_.empty() || bytes_.one_in(32)) {
        return kNoBlock;
    }
    return std::next(seen_.begin(), bytes_.below(static_cast<std::uint32_t>(seen_.size())))->first;
}

// ------------------------------------------------------------------------------------------------------------- pins

void ByteProgram::remember_pins(std::span<const BlockId> ids, std::span<const Held> held) {
    for (const BlockId id : ids) {
        const auto at = std::ranges::find(held, id, &Held::id);
        promise(at != held.end(), "a block is pinned that its request does not hold");
        memory_.pin(at->place, id, at->is_written);
        pins_.push_back({id, at->place});
    }
}

void ByteProgram::forget_pin(const Pinned& pinned) {
    memory_.unpin(pinned.place);
    pins_.erase(std::ranges::find_if(
        pins_, [&](const Pinned& pin) { return pin.id == pinned.id && pin.place == pinned.place; }));
}

void ByteProgram::pin_request() {
    const auto found = sequences_.find(any_request());
    if (found == sequences_.end()) {
        return;
    }
    const std::vector<Held> held = held_by(found->second);
    std::vector<BlockId> ids;
    std::ranges::transform(held, std::back_inserter(ids), &Held::id);
    std::vector<PinnedSlot> slots;
    if (!attempt([&] { slots = manager_.pin_blocks_by_id(ids); })) {
        return;
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const Place place{held[i].place.window, slots[i].tier, slots[i].slot};
        promise(slots[i].tier == Tier::host || place == held[i].place, "a block is pinned where it is not");
        memory_.pin(place, ids[i], held[i].is_written || slots[i].tier == Tier::host);
        pins_.push_back({ids[i], place});
    }
}

void ByteProgram::pin_ids() {
    std::vector<BlockId> ids(bytes_.between(1, 3));
    std::ranges::generate(ids, [&] { return any_block(); });
    std::vector<PinnedSlot> slots;
    if (!attempt([&] { slots = manager_.pin_blocks_by_id(ids); })) {
        return;
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const Place place{seen_.at(ids[i]), slots[i].tier, slots[i].slot};
        memory_.pin(place, ids[i], slots[i].tier == Tier::host);  // only primary is written on
        pins_.push_back({ids[i], place});
    }
}

WindowSize ByteProgram::any_window() {
    const auto& windows = manager_.config().windows;
    return windows[bytes_.below(static_cast<std::uint32_t>(windows.size()))].window_size;
}

void ByteProgram::unpin() {
    std::vector<BlockId> ids;
    for (std::uint32_t count = bytes_.between(1, 3); count > 0; --count) {
        const bool known = !pins_.empty() && !bytes_.one_in(16);
        ids.push_back(known ? pins_[bytes_.below(static_cast<std::uint32_t>(pins_.size()))].id : any_block());
    }
    const auto tier = bytes_.pick(std::array<std::optional<Tier>, 3>{std::nullopt, Tier::primary, Tier::host});
    const auto pinned_in = [&](BlockId id, Tier in) {
        return std::ranges::any_of(pins_, [&](const Pinned& pin) { return pin.id == id && pin.place.tier == in; });
    };
    std::vector<Pinned> left = pins_;
    std::vector<Pinned> ended;
    bool legal = true;
    for (const BlockId id : ids) {
        const Tier from = tier.value_or(pinned_in(id, Tier::primary) ? Tier::primary : Tier::host);
        const auto at =
            std::ranges::find_if(left, [&](const Pinned& pin) { return pin.id == id && pin.place.tier == from; });
        legal = legal && at != left.end() && (tier || !pinned_in(id, Tier::primary) || !pinned_in(id, Tier::host));
        if (legal) {
            ended.push_back(*at);
            left.erase(at);
        }
    }
    promise(attempt([&] { manager_.unpin_blocks_by_id(ids, tier); }) == legal,
            legal ? "a pin cannot be ended" : "a pin that is not there is ended");
    if (legal) {
        std::ranges::for_each(ended, [&](const Pinned& pin) { forget_pin(pin); });
    }
}

// --------------------------------------------------------------------------------------------------------- the rest

void ByteProgram::pass_time() {
    switch (bytes_.below(16)) {
        case 0:
            manager_.reset_reuse_state();
            break;
        case 1:
            promise(now_ms_ == 0 || !attempt([&] { manager_.advance_time(now_ms_ - 1); }), "time runs backwards");
            break;
        case 2:
        case 3:
            promise(manager_.get_latest_events().size() <= manager_.config().events_max,
                    "more events than events_max wait");
            promise(manager_.get_latest_events().empty(), "events are read twice");
            break;
        case 4:
            manager_.refresh_blocks();
            break;
        default:
            now_ms_ += bytes_.below(6);
            manager_.advance_time(now_ms_);
    }
}

void ByteProgram::read() {
    const std::uint64_t before = manager_.digest();
    manager_.analyze_prefix_reuse(make_request(bytes_, next_id_++, manager_.config()).request);
    for (const WindowStats& window : stats().windows) {
        for (const TierStats& tier : {window.primary, window.host}) {
            promise(tier.free + tier.cached + tier.owned + tier.in_flight == tier.blocks,
                    "free, cached, owned and in flight are not all");
        }
    }
    const RequestId id = any_request();
    const auto found = sequences_.find(id);
    const bool known = attempt([&] {
        const RequestStats numbers = manager_.get_request_stats(id);
        promise(numbers.tokens_reused + numbers.tokens_new == found->second.request->num_tokens(),
                "a request's numbers do not add up");
    });
    promise(known == (found != sequences_.end()), "numbers of an unknown request");
    promise(manager_.digest() == before, "reading changed the digest");
}

void ByteProgram::misuse() {
    const RequestId id = any_request();
    const OwnedSequence fresh = make_request(bytes_, next_id_++, manager_.config());
    const BlockManagerConfig& config = manager_.config();
    std::vector<std::int32_t> table(64, 0);
    const auto refused = [&](const std::function<void()>& call) { promise(!attempt(call), "misuse is accepted"); };
    const auto batch = [&](std::vector<RequestPtr> requests) { manager_.add_sequence_batch(requests, std::nullopt); };
    switch (bytes_.below(8)) {
        case 0:
            refused([&] { batch({fresh.request, fresh.request}); });
            break;
        case 1:
            if (const auto alive = sequences_.find(id); alive != sequences_.end()) {
                refused([&] { batch({fresh.request, alive->second.request}); });
            }
            break;
        case 2:
            refused([&] {
                batch({fresh.request,
                       std::make_shared<const Request>(next_id_, fresh.tokens, config.beam_width_max + 1, std::nullopt,
                                                       Salt(), std::vector<ExtraKey>(), std::nullopt)});
            });
            break;
        case 3:
            refused([&] { manager_.get_batch_cache_block_ids({&id, 1}, 12345U); });
            break;
        case 4:
            refused([&] { manager_.get_num_front_blocks_removed(id, 12345U); });
            break;
        case 5:
            refused([&] {
                manager_.copy_batch_block_offsets({table.data(), config.windows.size() + 1, 1, 1}, {&id, 1}, 1, 0, {});
            });
            break;
        case 6:
            refused([&] {
                manager_.copy_batch_block_offsets({table.data(), config.windows.size(), 4, 1}, {&id, 1}, 1, 4, {});
            });
            break;
        default:
            promise(manager_.add_sequence_batch({}, 0).admitted.empty(), "an empty batch admits something");
    }
}

}  // namespace kvfix::testing
