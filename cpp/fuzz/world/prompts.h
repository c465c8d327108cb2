// The prompts of requests, and the values that the cache must hold for each of their tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/block_manager.h"
#include "fuzz/world/random.h"

namespace kvfix::world {

// A prompt with everything that identifies its content. Two prompts may share cache as far as both agree.
struct Prompt {
    std::vector<TokenId> tokens;
    std::optional<std::int64_t> lora_id;
    Salt salt;
    std::vector<ExtraKey> spans;
};

// The value of each token's cell. It depends on everything before the token.
std::vector<std::uint64_t> contents_of(const Prompt& prompt);
// Appends the contents of later tokens to `contents`, which has those of the tokens before.
void extend_contents(std::vector<std::uint64_t>& contents, const Prompt& prompt);

// A request that has been admitted and is live.
struct Live {
    RequestPtr request;
    std::uint32_t writer = 0;  // of its cells; request ids may be any numbers
    Prompt truth;              // tokens up to end(), whether or not the manager knows them
    std::vector<std::uint64_t> contents;
    std::uint32_t length = 0;          // positions reserved; at first, those of its first chunk
    std::uint32_t chunk = ~0U;         // the most tokens of its prompt that are reserved at a time
    bool undisturbed = true;           // nothing has been pinned or on its way when it grew
    std::uint32_t known = 0;           // leading positions whose tokens the manager knows
    std::uint32_t told = 0;            // leading positions that were reported to the manager as computed
    std::uint32_t written = 0;         // leading positions that are computed
    std::uint32_t spoiled_from = ~0U;  // positions from there on were computed from lost bytes
    std::vector<std::uint32_t> left;   // leading blocks that have left each window

    RequestId id() const { return request->id; }
    std::uint32_t beams() const { return request->beam_width; }
    std::uint32_t prompt_length() const { return request->num_tokens(); }
    // The position at which the tokens that growth brings begin.
    std::uint32_t end() const { return std::max(length, prompt_length()); }
    std::uint64_t content(std::uint32_t position, std::uint32_t beam) const;
};

class PromptSource {
  public:
    PromptSource(Random& random, const BlockManagerConfig& config);

    // Has at most `longest` tokens. Often begins like an earlier prompt.
    Prompt prompt(std::uint32_t longest);
    // The same prompt, but longer or shorter, or with other spans or another tenant.
    Prompt variation(const Prompt& prompt, std::uint32_t longest);
    TokenId token();
    bool draws_spans() const { return spans_; }
    std::optional<Retention> retention(std::uint32_t tokens);
    void remember(const Prompt& prompt);

  private:
    void add_tokens(Prompt& prompt, std::uint32_t count);
    void add_spans(Prompt& prompt, std::uint32_t begin);
    void draw_tenant(Prompt& prompt);

    Random& random_;
    std::uint32_t tokens_per_block_;
    std::uint32_t alphabet_;
    bool tenants_;
    bool spans_;
    std::vector<Prompt> remembered_;
};

}  // namespace kvfix::world
