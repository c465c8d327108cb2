// Blocks are named and forgotten by name: block hashes and conversations.
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

// The blocks of a live request have the hashes that a prompt of all its known tokens would give them.
void World::name_blocks() {
    const Live* found = any_live();
    if (found == nullptr) {
        return;
    }
    const Live& live = *found;

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
