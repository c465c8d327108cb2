// Requests grow, shrink and report what they have computed.
#include <algorithm>
#include <iterator>

#include "fuzz/world/world.h"

namespace kvfix::world {

// Often the latest request, because most failures take several calls about one request.
Live* World::any_live() {
    if (live_.empty()) {
        return nullptr;
    }
    const auto last = live_.find(last_);
    const auto chosen =
        last != live_.end() && random_.one_in(2) ? last : std::next(live_.begin(), random_.below(live_.size()));
    last_ = chosen->first;
    return &chosen->second;
}

// Mostly everything that the engine has computed, sometimes less, and rarely more than is possible.
std::uint32_t World::reported(const Live& live) {
    if (random_.one_in(64)) {
        return live.length + random_.between(1, 3);
    }
    return random_.one_in(3) ? random_.below(std::uint64_t{live.written} + 1) : live.written;
}

// `computed` positions are finished. Nobody reads blocks any more that end a window's size before them.
void World::leave_windows(Live& live, std::uint32_t computed) const {
    for (std::size_t window = 0; window < windows(); ++window) {
        if (const std::uint32_t size = window_tokens(window); computed > size) {
            live.left[window] = std::max(live.left[window], (computed - size) / block_tokens());
        }
    }
}

void World::grow() {
    Growth growth;
    for (auto& [id, live] : live_) {
        if (random_.one_in(id == last_ ? 2 : 4)) {
            growth.grown.push_back(&live);
        }
    }
    std::vector<std::uint32_t> reports;
    for (const Live* live : growth.grown) {
        growth.counts.push_back(random_.one_in(2) ? 1 : random_.small(2 * block_tokens() + 1));
        reports.push_back(reported(*live));
    }
    growth.computed = random_.one_in(3) ? std::nullopt : std::optional(reports);
    add_tokens(growth);
}

// One more position for those of the last batch. Once one of them has ended, or is away, the batch is refused and another is made.
void World::decode() {
    std::vector<RequestId> ids = decoding_.empty() ? std::vector<RequestId>{} : decoding_.begin()->second.ids;
    const bool all_live = std::ranges::all_of(ids, [&](RequestId id) { return live_.contains(id); });
    if (!all_live) {
        const bool computed = random_.one_in(2);
        const auto outcome = twins_.change([&](BlockManager& manager) {
            manager.add_tokens(decoding_.at(&manager), std::nullopt, computed);
            return Nothing{};
        });
        promise(!outcome && outcome.refused->why != Refusal::out_of_blocks,
                "a batch grows without one of its requests");
    }
    if (!all_live || ids.empty() || random_.one_in(8)) {
        ids.clear();
        for (const auto& [id, live] : live_) {
            if (random_.one_in(2)) {
                ids.push_back(id);
            }
        }
        make_decode_batch(ids);
    }
    Growth growth;
    growth.decodes = true;
    std::vector<std::uint32_t> lengths;
    for (const RequestId id : ids) {
        growth.grown.push_back(&live_.at(id));
        growth.counts.push_back(1);
        lengths.push_back(live_.at(id).length);
    }
    const bool all_computed =
        std::ranges::all_of(growth.grown, [](const Live* live) { return live->written == live->length; });
    if (all_computed && !random_.one_in(4)) {
        growth.computed = lengths;
    }
    add_tokens(growth);
}

void World::make_decode_batch(const std::vector<RequestId>& ids) {
    decoding_.clear();
    const auto made = twins_.change([&](BlockManager& manager) {
        decoding_.insert_or_assign(&manager, manager.decode_batch(ids));
        return Nothing{};
    });
    promise(bool(made), "a batch of live requests is refused");
}

// Reserves chunks of one prompt, each when those before it have been computed, often to its end.
void World::prefill() {
    for (Live* next = any_unfinished(); next != nullptr && !random_.one_in(8); next = unfinished(last_)) {
        last_ = next->id();
        run_step();
        settle();
        compute(*next);
        const std::uint32_t most = std::min(next->chunk, next->prompt_length() - next->length);
        add_tokens({.grown = {next},
                    .counts = {random_.one_in(2) ? most : random_.between(1, most)},
                    .computed = std::vector{next->written}});
    }
}

void World::add_tokens(Growth growth) {
    const auto& grown = growth.grown;  // clang 14 captures no structured bindings
    const auto& counts = growth.counts;
    const auto& computed = growth.computed;
    std::vector<RequestId> ids;
    std::ranges::transform(grown, std::back_inserter(ids), [](const Live* live) { return live->id(); });
    const bool legal_with_tokens = growth_is_legal(growth, true);
    const bool with_tokens = legal_with_tokens ? !random_.one_in(4) : random_.one_in(16);
    std::vector<TokenId> tokens;
    std::vector<std::vector<TokenId>> tokens_of;
    for (std::size_t i = 0; i < grown.size(); ++i) {
        const Live& live = *grown[i];
        std::vector<TokenId> more(std::max(live.length + counts[i], live.prompt_length()) - live.end());
        std::ranges::generate(more, [&] { return source_.token(); });
        tokens.insert(tokens.end(), more.begin(), more.end());
        tokens_of.push_back(std::move(more));
    }
    const auto given = with_tokens ? std::optional<std::span<const TokenId>>(tokens) : std::nullopt;
    const Promise room = room_for(growth);
    for (auto& [id, live] : live_) {  // another request may have had to do without what a pin holds
        live.undisturbed = live.undisturbed && pins_.empty() && all_settled();
    }
    tell([&] {
        return "grow " + text(grown.size()) + " requests" +
               (grown.empty() ? ""
                              : ", the first " + text(ids[0]) + " by " + text(counts[0]) +
                                    (computed ? ", computed " + text(computed->front()) : "")) +
               (with_tokens ? " with tokens" : "");
    });
    const auto outcome = twins_.change([&](BlockManager& manager) {
        // Short calls first, as callers with the GIL do.
        if (growth.decodes) {
            grow::DecodeBatch& batch = decoding_.at(&manager);
            if (!manager.add_few_tokens(batch, given, computed.has_value())) {
                manager.add_tokens(batch, given, computed.has_value());
            }
        } else if (!manager.add_few_tokens(ids, counts, given, computed)) {
            manager.add_tokens(ids, counts, given, computed);
        }
        return Nothing{};
    });
    const bool legal = growth_is_legal(growth, with_tokens);
    promise(outcome ? legal && room.may_fit : !(legal && room.must_fit), [&] {
        return outcome ? std::string("growth is not refused") : "growth is refused: " + outcome.refused->text;
    });
    if (!outcome) {
        promise(!legal || outcome.refused->why == Refusal::out_of_blocks, "growth is refused for another reason");
        make_room();
        return;
    }
    queued_ = queued_ || room.needed != 0;
    note_growth(growth, tokens_of, with_tokens);
}

void World::note_growth(const Growth& growth, const std::vector<std::vector<TokenId>>& tokens_of, bool with_tokens) {
    for (std::size_t i = 0; i < growth.grown.size(); ++i) {
        Live& live = *growth.grown[i];
        if (growth.computed) {
            live.told = std::max(live.told, (*growth.computed)[i]);
        }
        leave_windows(live, live.told);
        live.length += growth.counts[i];
        live.known += with_tokens ? static_cast<std::uint32_t>(tokens_of[i].size()) : 0;
        live.truth.tokens.insert(live.truth.tokens.end(), tokens_of[i].begin(), tokens_of[i].end());
        extend_contents(live.contents, live.truth);
    }
}

// Growth that is not promised needs room that is there. Growth that is promised has room of its own.
World::Promise World::room_for(const Growth& growth) {
    Promise out;
    std::uint64_t unpromised = 0;
    for (std::size_t i = 0; i < growth.grown.size(); ++i) {
        const Live& live = *growth.grown[i];
        const std::uint64_t more = blocks_over(live, live.length + growth.counts[i]) - blocks_over(live, live.length);
        const bool promised = in_promise(live, growth.counts[i], growth.computed ? (*growth.computed)[i] : 0);
        tally_.chunks += promised && more != 0 ? 1 : 0;
        out.needed += more;
        unpromised += promised ? 0 : more;
    }
    const auto there = allocatable();
    const auto holds = [&](std::uint64_t blocks) {
        return std::ranges::all_of(there, [&](std::uint64_t slots) { return blocks <= slots; });
    };
    out.must_fit = holds(out.needed) || (pins_.empty() && all_settled() && holds(unpromised));
    out.may_fit = out.must_fit || std::ranges::any_of(live_, [](const auto& each) { return each.second.chunk != ~0U; });
    return out;
}

Live* World::unfinished(RequestId id) {
    const auto found = live_.find(id);
    return found != live_.end() && found->second.length < found->second.prompt_length() ? &found->second : nullptr;
}

Live* World::any_unfinished() {
    const auto found =
        std::ranges::find_if(live_, [](const auto& each) { return each.second.length < each.second.prompt_length(); });
    return found == live_.end() ? nullptr : &found->second;
}

// Counts one window's blocks. Beams share the prompt's whole blocks.
std::uint64_t World::blocks_over(const Live& live, std::uint32_t length) const {
    const std::uint32_t blocks = (length + block_tokens() - 1) / block_tokens();
    const std::uint32_t shared = std::min(blocks, live.prompt_length() / block_tokens());
    return shared + std::uint64_t{blocks - shared} * live.beams();
}

// Whether a prompt admitted in chunks keeps its promise: no more than one chunk is reserved beyond what has been
// computed.
bool World::in_promise(const Live& live, std::uint32_t count, std::uint32_t told) const {
    const std::uint32_t length = live.length + count;
    return live.undisturbed && length <= live.prompt_length() && length - std::max(live.told, told) <= live.chunk;
}

bool World::growth_is_legal(const Growth& growth, bool with_tokens) const {
    for (std::size_t i = 0; i < growth.grown.size(); ++i) {
        const Live& live = *growth.grown[i];
        const bool nowhere = live.length + growth.counts[i] > live.end() && live.known != live.end();
        if ((with_tokens && (nowhere || live.beams() > 1)) ||
            (growth.computed && (*growth.computed)[i] > live.length)) {
            return false;
        }
    }
    return true;
}

void World::rewind() {
    Live* live = any_live();
    if (live == nullptr) {
        return;
    }
    const std::uint32_t grown = live->end() - live->prompt_length();
    const std::uint32_t count =
        random_.one_in(8) ? random_.small(grown + 3) : std::min(grown, 1 + random_.small(grown));
    const std::uint32_t length = live->length - std::min(count, live->length);
    const std::uint32_t told = std::min(live->told, length);
    bool legal = count <= grown;
    for (std::size_t window = 0; window < windows(); ++window) {
        const std::uint32_t size = window_tokens(window);
        legal = legal && live->left[window] <= (told > size ? (told - size) / block_tokens() : 0);
    }
    tell([&] { return "rewind " + text(live->id()) + " by " + text(count); });
    const auto outcome = twins_.change([&](BlockManager& manager) {
        manager.rewind_kv_cache(live->id(), count);
        return Nothing{};
    });
    promise(bool(outcome) == legal, outcome ? "a rewind is not refused" : "a rewind is refused");
    if (outcome) {
        live->length = length;
        live->told = told;
        live->written = std::min(live->written, length);
        live->known = std::min(live->known, live->end());
        live->truth.tokens.resize(live->end());
        live->contents.resize(live->end());
    }
    if (outcome &&
        random_.one_in(2)) {  // a draft was refused: another takes its place, and the request may end with it
        grow();
        if (random_.one_in(2)) {
            remove();
        }
    }
}

void World::store_context() {
    Live* live = any_live();
    if (live == nullptr) {
        return;
    }
    const std::uint32_t most = std::min(live->written, live->prompt_length());
    std::uint32_t computed = random_.one_in(3) ? random_.below(std::uint64_t{most} + 1) : most;
    if (random_.one_in(64)) {
        computed = live->prompt_length() + random_.between(1, 3);
    }
    tell([&] { return "store " + text(live->id()) + " up to " + text(computed); });
    const auto outcome = twins_.change([&](BlockManager& manager) {
        manager.store_context_blocks(live->id(), computed);
        return Nothing{};
    });
    promise(bool(outcome) == (computed <= std::min(live->length, live->prompt_length())),
            "storing is refused, or is not");
    if (outcome) {
        live->undisturbed = live->undisturbed && pins_.empty() && all_settled();
        live->told = std::max(live->told, computed);
        leave_windows(*live, live->told);
        Live stored = *live;
        stored.truth.tokens.resize(stored.prompt_length());
        if (live->length >= live->prompt_length()) {  // before that, blocks enter as they leave
            expect_found_again(stored, std::min(live->told, live->prompt_length()));
        }
    }
}

}  // namespace kvfix::world
