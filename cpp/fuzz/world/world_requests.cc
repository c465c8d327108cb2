// Requests come and go.
#include <algorithm>
#include <memory>
#include <numeric>

#include "fuzz/world/world.h"

namespace kvfix::world {
namespace {

constexpr std::uint32_t kPoolsOfALongPrompt = 8;

// The most primary slots of a window that the request can need, whatever it reuses. In chunks, these are the blocks
// that it claims in the window, plus those that the window and one chunk touch, wherever they begin.
std::uint64_t slots_at_most(const Request& request, std::uint32_t tokens_per_block, std::uint64_t reach,
                            std::uint32_t chunk) {
    const std::uint64_t blocks = (std::uint64_t{request.num_tokens()} + tokens_per_block - 1) / tokens_per_block;
    const std::uint64_t claimed = reach / tokens_per_block + 2;
    const std::uint64_t touched = (tokens_per_block - 1 + reach + chunk + tokens_per_block - 1) / tokens_per_block;
    return std::min(blocks, claimed + touched) +
           (request.num_tokens() % tokens_per_block != 0 ? request.beam_width - 1 : 0);
}

}  // namespace

World::Ask World::request_for(Prompt prompt) {
    const auto tokens = static_cast<std::uint32_t>(prompt.tokens.size());
    // Any number may be an id: neither the order nor the distance of ids means anything.
    const RequestId id = random_.one_in(2) ? mixed(random_.word()) : 1'000'000 + ++writers_;
    const std::uint32_t beams = random_.one_in(2) ? 1 : random_.between(1, twins_.config().beam_width_max);
    auto request = std::make_shared<const Request>(id, prompt.tokens, beams, prompt.lora_id, prompt.salt, prompt.spans,
                                                   source_.retention(tokens));
    return {.request = std::move(request), .prompt = std::move(prompt)};
}

void World::admit() {
    std::uint32_t blocks = ~0U;
    for (const WindowConfig& window : twins_.config().windows) {
        blocks = std::min(blocks, window.blocks_primary);
    }
    const auto chunk = random_.one_in(2) ? std::optional(1 + random_.small(4 * block_tokens())) : std::nullopt;
    std::uint32_t longest = std::max(1U, blocks * block_tokens() / random_.between(1, 8));
    longest *= chunk && random_.one_in(2) ? kPoolsOfALongPrompt : 1;  // more tokens than there are slots for
    std::vector<Ask> batch;
    std::vector<RequestPtr> requests;
    for (std::uint32_t count = random_.one_in(2) ? 1 : random_.between(1, 5); count > 0; --count) {
        const bool again = !batch.empty() && random_.one_in(3);  // nearly the same as another request of the batch
        batch.push_back(again ? request_for(source_.variation(random_.pick(batch).prompt, longest))
                              : next_ask(longest));
        requests.push_back(batch.back().request);
    }
    std::vector<std::uint32_t> promised;
    for (Ask& ask : batch) {
        ask.chunk = chunk.value_or(~0U);
        promised.push_back(analyze(ask.request, chunk));
    }
    std::optional<std::uint64_t> budget;
    if (random_.one_in(3)) {
        budget = random_.below(std::uint64_t{longest} * batch.size() + 2);
    }
    const std::vector<std::uint64_t> room = allocatable();
    tell([&] {
        return "admit " + text(batch.size()) + " requests, the first " + text(requests.front()->id) + " of " +
               text(requests.front()->num_tokens()) + " tokens, budget " + (budget ? text(*budget) : "none") +
               (chunk ? ", in chunks of " + text(*chunk) : "");
    });
    const auto outcome =
        twins_.change([&](BlockManager& manager) { return manager.add_sequence_batch(requests, budget, chunk); });
    if (outcome) {
        expect_batch(outcome.answer, batch, promised, budget);
        return;
    }
    expect_refusal(*outcome.refused, batch, room);
    make_room();
}

std::uint32_t World::analyze(const RequestPtr& request, std::optional<std::uint32_t> chunk) {
    const auto outcome =
        twins_.look([&](BlockManager& manager) { return manager.analyze_prefix_reuse(request, chunk); });
    promise(bool(outcome), "analyze_prefix_reuse refuses a good request");
    const auto tokens = static_cast<std::uint32_t>(outcome.answer.tokens);
    promise(tokens < request->num_tokens(), "a prompt's last token is not computed");
    promise(twins_.config().block_reuse || tokens == 0, "something is reused, although nothing may be");
    promise(twins_.config().partial_reuse || tokens % block_tokens() == 0, "a part of a block is reused");
    return tokens;
}

void World::expect_refusal(const Refused& refused, const std::vector<Ask>& batch,
                           const std::vector<std::uint64_t>& room) const {
    promise(refused.why == Refusal::out_of_blocks, [&] { return "a good batch is refused: " + refused.text; });
    promise(refused.needed > refused.free, "refused for want of blocks that are there");
    std::vector<std::uint64_t> needed(windows(), 0);
    for (const Ask& ask : batch) {
        for (std::size_t window = 0; window < windows(); ++window) {
            needed[window] += slots_at_most(*ask.request, block_tokens(), window_tokens(window), ask.chunk);
        }
    }
    const auto enough = [&](std::size_t window) { return needed[window] <= room[window]; };
    bool fits = true;
    for (std::size_t window = 0; window < windows(); ++window) {
        fits = fits && enough(window);
    }
    promise(!fits, "a batch is refused that would fit without any reuse");
}

void World::expect_batch(const BatchAdmission& answer, const std::vector<Ask>& batch,
                         const std::vector<std::uint32_t>& promised, std::optional<std::uint64_t> budget) {
    const std::size_t count = answer.admitted.size();
    promise(count + answer.deferred.size() == batch.size(), "a request is neither admitted nor deferred");
    std::uint64_t computed = 0;
    for (std::size_t i = 0; i < count; ++i) {
        promise(answer.admitted[i].request_id == batch[i].request->id, "requests are admitted out of order");
        expect_admission(answer.admitted[i], batch[i], promised[i], batch.size() == 1);
        computed += std::min<std::uint64_t>(answer.admitted[i].tokens_new, batch[i].chunk);
    }
    for (std::size_t i = count; i < batch.size(); ++i) {
        promise(answer.deferred[i - count] == batch[i].request->id, "requests are deferred out of order");
    }
    promise(!budget || computed <= *budget, "more tokens than the budget");
    promise(budget || count == batch.size(), "a request is deferred without a budget");
    if (count < batch.size()) {
        expect_deferral(batch, promised, *budget, count, computed);
    }
    tally_.deferred += answer.deferred.size();
    for (std::size_t i = 0; i < count; ++i) {
        begin(answer.admitted[i], batch[i]);
    }
    queued_ = queued_ || count != 0;
}

// `computed` tokens go to the `count` requests before it. Beside others, a request may reuse only whole blocks. If that
// would leave no request, the first is admitted as if it were alone, and no other is.
void World::expect_deferral(const std::vector<Ask>& batch, const std::vector<std::uint32_t>& promised,
                            std::uint64_t budget, std::size_t count, std::uint64_t computed) const {
    const auto most_computed = [&](std::size_t i) {
        const bool copies = twins_.config().copy_on_partial_reuse;
        const std::uint32_t whole = copies ? promised[i] - promised[i] % block_tokens() : 0;
        return std::min(batch[i].request->num_tokens() - whole, batch[i].chunk);
    };
    const std::uint64_t more =
        count == 0 ? std::min(batch[0].request->num_tokens() - promised[0], batch[0].chunk) : most_computed(count);
    const bool came_alone = count == 1 && most_computed(0) > budget;
    promise(came_alone || computed + more > budget, [&] {
        return "request " + text(batch[count].request->id) + " is deferred, and the budget of " + text(budget) +
               " tokens holds the " + text(more) + " that it computes";
    });
}

void World::expect_admission(const Admission& admission, const Ask& ask, std::uint32_t promised, bool alone) {
    const Request& request = *ask.request;
    const std::uint64_t reused = admission.tokens_reused;
    const std::uint32_t whole = promised - promised % block_tokens();
    const auto counts = [&] { return text(reused) + " tokens are reused, " + text(promised) + " were promised"; };
    ++tally_.promises;
    promise(reused == promised || (!alone && reused == whole) ||
                (!alone && !twins_.config().copy_on_partial_reuse && reused < promised),
            counts);
    promise(reused + admission.tokens_new == request.num_tokens(), "reused and new tokens are not the prompt");
    const std::uint64_t full = reused / block_tokens();
    const std::uint64_t part = reused % block_tokens() != 0 ? 1 : 0;
    const std::uint64_t length = reused + std::min<std::uint64_t>(admission.tokens_new, ask.chunk);
    const std::uint64_t blocks = (length + block_tokens() - 1) / block_tokens();
    const std::uint64_t tails = blocks > request.num_tokens() / block_tokens() ? request.beam_width : 1;
    const bool tail_is_new = full + part < blocks;
    promise(admission.blocks_reused == (full + part) * windows(), "blocks_reused is wrong");
    promise(admission.blocks_new == (blocks - full - part + (tail_is_new ? tails - 1 : 0)) * windows(),
            "blocks_new is wrong");
    onboards_promised_ += admission.blocks_onboarded;
    const auto stats = twins_.look([&](BlockManager& manager) { return manager.get_request_stats(request.id); });
    promise(stats && stats.answer.tokens_reused == reused && stats.answer.tokens_new == admission.tokens_new &&
                stats.answer.blocks_onboarded == admission.blocks_onboarded && stats.answer.blocks_grown == 0 &&
                stats.answer.blocks_missed == (request.num_tokens() / block_tokens() - full) * windows(),
            "a request's numbers are not those of its admission");
}

void World::begin(const Admission& admission, const Ask& ask) {
    Live live;
    live.request = ask.request;
    live.writer = ++writers_;
    live.truth = ask.prompt;
    live.contents = contents_of(ask.prompt);
    live.known = ask.request->num_tokens();
    live.told = live.written = static_cast<std::uint32_t>(admission.tokens_reused);
    live.chunk = ask.chunk;
    live.length = live.told + std::min(live.known - live.told, ask.chunk);
    live.left.assign(windows(), 0);
    leave_windows(live, live.told - live.told % block_tokens());
    ++tally_.admitted;
    const auto [at, fresh] = live_.emplace(ask.request->id, std::move(live));
    promise(fresh, "an id is admitted twice");
    for (const Held& held : held_by(at->second)) {
        const Slot& slot = memory_.at(held.place);
        promise(!slot.flying, [&] { return name(held.place) + " is handed out before a transfer there has ended"; });
        promise(slot.pins == 0 || slot.pinned_id == held.id,
                [&] { return name(held.place) + " is pinned, and handed out as another block"; });
    }
}

void World::make_room() {
    if (Live* live = any_live(); live != nullptr && !random_.one_in(3)) {
        remove();
    }
}

void World::remove() {
    Live* live = any_live();
    if (live == nullptr) {
        return;
    }
    const bool store = !random_.one_in(5);
    if (queued_ && random_.one_in(2)) {
        take();
    }
    const bool pin = !pins_nothing_ && !queued_ && random_.one_in(16);
    std::optional<std::vector<TokenId>> tokens;
    if (random_.one_in(2)) {
        const auto& truth = live->truth.tokens;
        tokens.emplace(truth.begin(), truth.begin() + random_.between(live->known, live->end()));
    }
    const std::uint32_t computed = reported(*live);
    const std::vector<Held> held = held_by(*live);
    const bool flying = std::ranges::any_of(held, [&](const Held& one) { return memory_.at(one.place).flying; });
    tell([&] {
        return "remove " + text(live->id()) + (store ? ", store" : "") + (pin ? ", pin" : "") + ", computed " +
               text(computed) + (tokens ? ", tokens " + text(tokens->size()) : "");
    });
    const auto outcome = twins_.change(
        [&](BlockManager& manager) { return manager.remove_sequence(live->id(), store, pin, tokens, computed); });
    const bool of_one_beam = !tokens || live->beams() == 1 || tokens->size() <= live->prompt_length();
    promise(bool(outcome) == (computed <= live->length && !(pin && flying) && of_one_beam), [&] {
        return outcome ? std::string("the end of a request is not refused")
                       : "the end of a request is refused: " + outcome.refused->text;
    });
    if (!outcome) {
        return;
    }
    remember_pins(outcome.answer, held, pin);
    Live gone = std::move(*live);
    live_.erase(gone.request->id);
    gone.known = tokens ? static_cast<std::uint32_t>(tokens->size()) : gone.known;
    gone.told = std::max(gone.told, computed);
    gone.truth.tokens.resize(gone.known);
    source_.remember(gone.truth);
    if (store) {
        expect_found_again(gone, std::min(gone.told, gone.known));
    }
}

// With one window that blocks never leave and nothing on its way, what was stored a moment ago is found.
void World::expect_found_again(const Live& gone, std::uint32_t stored) {
    Prompt more = gone.truth;
    const auto whole = std::min<std::uint32_t>(stored, gone.beams() == 1 ? stored : gone.prompt_length());
    const bool comparable = all_settled() && gone.spoiled_from == ~0U && twins_.config().block_reuse &&
                            windows() == 1 && gone.left.front() == 0;
    if (!comparable) {
        return;
    }
    more.tokens.push_back(source_.token());
    const std::uint32_t found = analyze(request_for(std::move(more)).request);
    const std::uint32_t wanted = whole - whole % block_tokens();
    promise(found >= wanted, [&] { return "of " + text(wanted) + " stored tokens " + text(found) + " are found"; });
}

}  // namespace kvfix::world
