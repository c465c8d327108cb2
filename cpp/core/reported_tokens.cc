#include "core/reported_tokens.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/grow.h"

namespace kvfix {
namespace {

void check_whole_tokens(const Sequence& sequence, std::span<const TokenId> tokens) {
    const std::string who = "request " + std::to_string(sequence.id()) + ", tokens";
    if (tokens.size() > sequence.values_begin()) {
        throw std::invalid_argument(who + ": " + std::to_string(tokens.size()) + " tokens for a sequence of " +
                                    std::to_string(sequence.values_begin()) + "; grow it first");
    }
    if (tokens.size() < sequence.known()) {
        throw std::invalid_argument(who + ": " + std::to_string(tokens.size()) + " tokens, but " +
                                    std::to_string(sequence.known()) +
                                    " are known already; give the whole sequence, prompt included");
    }
    if (const auto negative = find_negative(tokens)) {
        refuse_negative(who, tokens, *negative);
    }
    std::vector<TokenId> expected(sequence.known());
    sequence.read_tokens(0, expected);
    const auto [at, given] = std::ranges::mismatch(expected, tokens.first(expected.size()));
    if (at != expected.end()) {
        throw std::invalid_argument(who + ": token " + std::to_string(at - expected.begin()) + " is " +
                                    std::to_string(*given) + ", but the sequence has " + std::to_string(*at) +
                                    " there (another request's tokens?)");
    }
    if (tokens.size() > sequence.known() && sequence.beam_width() > 1) {
        throw std::invalid_argument(who + ": with beam_width " + std::to_string(sequence.beam_width()) +
                                    " each beam has tokens of its own after the prompt");
    }
}

}  // namespace

void check_reported_tokens(const Sequence& sequence, std::optional<std::span<const TokenId>> tokens,
                           std::optional<std::uint32_t> computed) {
    grow::check_computed(sequence, computed.value_or(0));
    if (tokens) {
        check_whole_tokens(sequence, *tokens);
    }
}

void learn_reported_tokens(Sequence& sequence, std::optional<std::span<const TokenId>> tokens,
                           std::optional<std::uint32_t> computed) {
    if (tokens && tokens->size() > sequence.known()) {
        sequence.learn(tokens->subspan(sequence.known()));
    }
    sequence.computed = std::max(sequence.computed, computed.value_or(0));
}

}  // namespace kvfix
