// Blocks are stored and forgotten by name: live stores, block hashes and conversations.
#include <algorithm>

#include "fuzz/world/world.h"

namespace kvfix::world {
namespace {

// The prompt's first `tokens` tokens, and the parts of its spans that lie there.
Prompt beginning(Prompt prompt, std::uint32_t tokens) {
    prompt.tokens.resize(tokens);
    std::erase_if(prompt.spans, [&](const ExtraKey& span) { return span.begin >= tokens; });
    for (ExtraKey& span : prompt.spans) {
        span.end = std::min(span.end, tokens);
    }
    return prompt;
}

}  // namespace

void World::store_live() {
    Live* live = any_live();
    if (live == nullptr) {
        return;
    }
    if (queued_) {
        take();
    }
    const bool pin = random_.one_in(16);
    std::optional<std::vector<TokenId>> tokens;
    if (random_.one_in(3)) {
        const auto& truth = live->truth.tokens;
        tokens.emplace(truth.begin(), truth.begin() + random_.between(live->known, live->end()));
    }
    const std::uint32_t computed = reported(*live);
    const std::vector<Held> held = held_by(*live);
    const bool flying = std::ranges::any_of(held, [&](const Held& one) { return memory_.at(one.place).flying; });
    live->undisturbed = live->undisturbed && pins_.empty() && all_settled();
    const bool of_one_beam = !tokens || live->beams() == 1 || tokens->size() <= live->prompt_length();
    tell([&] { return "store live " + text(live->id()) + (pin ? ", pin" : "") + ", computed " + text(computed); });
    const auto outcome = twins_.change(
        [&](BlockManager& manager) { return manager.store_blocks_for_reuse(live->id(), pin, tokens, computed); });
    promise(bool(outcome) == (computed <= live->length && !(pin && flying) && of_one_beam),
            "a live store is refused, or is not");
    if (!outcome) {
        return;
    }
    remember_pins(outcome.answer, held, pin);
    live->known = tokens ? static_cast<std::uint32_t>(tokens->size()) : live->known;
    live->told = std::max(live->told, computed);
    const std::uint32_t good = std::min(live->told, live->known);
    live->offered = std::max(live->offered, good - good % block_tokens());
    Live stored = *live;  // the sequence as found before blocks leave
    leave_windows(*live, live->told);
    stored.left = live->left;
    stored.truth.tokens.resize(stored.known);
    if (live->length >= live->prompt_length()) {  // before that, blocks enter as they leave
        expect_found_again(stored, good - good % block_tokens());
    }
    expect_named(*live);
}

// Its blocks have the hashes that a prompt of all its known tokens would give them.
void World::expect_named(const Live& live) {
    const auto hashes =
        twins_.look([&](BlockManager& manager) { return manager.commit_and_get_block_hashes(live.id()); });
    Prompt known = live.truth;
    known.tokens.resize(live.known);
    const Request whole(live.id(), known.tokens, 1, known.lora_id, known.salt, live.request->extra_keys, std::nullopt);
    promise(hashes && hashes.answer == hashes_of(whole), "a request's blocks have other names than their contents");
}

void World::truncate() {
    const Ask ask = request_for(source_.prompt(4 * block_tokens()));
    const std::uint32_t kept = random_.below(std::uint64_t{ask.request->num_tokens()} + 2);
    // In a window, what the whole prompt finds says nothing about what its beginning finds.
    const Ask head = request_for(beginning(ask.prompt, std::clamp(kept, 1U, ask.request->num_tokens())));
    const std::uint32_t found = analyze(head.request);
    tell([&] { return "truncate to " + text(kept); });
    const auto outcome = twins_.change(
        [&](BlockManager& manager) { return std::vector<std::uint64_t>{manager.truncate_blocks(ask.request, kept)}; });
    promise(bool(outcome) == (kept <= ask.request->num_tokens()), "a truncation is refused, or is not");
    if (outcome && all_settled()) {
        promise(analyze(head.request) >= found - found % block_tokens(), "a truncation takes what was to stay");
    }
}

}  // namespace kvfix::world
