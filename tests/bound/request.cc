#include "request.h"

#include <algorithm>

namespace bound {

std::optional<int> RetentionConfig::priority_at(int token) const {
    for (const TokenRangeRetention& range : ranges) {
        if (token >= range.token_start && (!range.token_end || token < *range.token_end)) return range.priority;
    }
    return std::nullopt;
}

void Request::start(const std::vector<Token>& input) {
    check(!input.empty(), "a request needs a prompt");
    const auto beams = std::size_t(std::max(1, sampling.beam_width));
    tokens.assign(beams, input);
    last_tokens.assign(beams, input.back());
    finish_reasons.assign(beams, FinishReason::NOT_FINISHED);
    prompt_len = orig_prompt_len = chunk_ = max_sent_token_len = int(input.size());
    if (extra_ids) check(extra_ids->size() == input.size(), "as many extra ids as tokens are needed");
    if (type == RequestType::GENERATION_ONLY) state = State::DISAGG_GENERATION_INIT;
    if (encoder_tokens || has_encoder_features) state = State::ENCODER_INIT;
}

int Request::max_beam_num_tokens() const {
    std::size_t longest = 0;
    for (const auto& beam : tokens) longest = std::max(longest, beam.size());
    return int(longest);
}

Tokens Request::unique_tokens(int beam) const {
    Tokens answer;
    for (Token token : tokens.at(std::size_t(beam))) {
        const std::size_t place = answer.size();
        answer.push_back({token, extra_ids && place < extra_ids->size() ? (*extra_ids)[place] : 0});
    }
    return answer;
}

int Request::add_token(Token token, int beam) {
    tokens.at(std::size_t(beam)).push_back(token);
    last_tokens.at(std::size_t(beam)) = token;
    return num_tokens(beam);
}

void Request::add_tokens(const std::vector<Token>& by_beam) {
    check(by_beam.size() == tokens.size(), "one token for each beam is needed");
    for (std::size_t beam = 0; beam < by_beam.size(); ++beam) add_token(by_beam[beam], int(beam));
}

void Request::set_generated(const std::vector<std::vector<Token>>& by_beam) {
    check(by_beam.size() == tokens.size(), "one list for each beam is needed");
    for (std::size_t beam = 0; beam < by_beam.size(); ++beam) {
        tokens[beam].resize(std::size_t(prompt_len));
        tokens[beam].insert(tokens[beam].end(), by_beam[beam].begin(), by_beam[beam].end());
    }
}

void Request::pause(int max_input_len) {
    // Beams would have to be swapped out, so they lose what they generated instead.
    const int length = sampling.beam_width > 1 ? prompt_len : std::min(max_input_len, max_beam_num_tokens());
    for (auto& beam : tokens) beam.resize(std::size_t(length));
    max_new_tokens -= length - prompt_len;
    prompt_len = length;
    state = encoder_tokens || has_encoder_features ? State::ENCODER_INIT : State::CONTEXT_INIT;
    set_position(0);
    prepopulated_[0] = prepopulated_[1] = 0;
    chunk_ = prompt_len;
    seq_slot.reset();
}

bool Request::in_generation() const {
    return state == State::GENERATION_IN_PROGRESS || state == State::GENERATION_TO_COMPLETE ||
           state == State::DISAGG_GENERATION_TRANS_COMPLETE;
}

bool Request::chunk_is_known() const {
    return in_context() || state == State::DISAGG_GENERATION_INIT || state == State::DISAGG_GENERATION_TRANS_COMPLETE;
}

Stage Request::stage() const {
    if (state == State::ENCODER_INIT) return Stage::ENCODER_IN_PROGRESS;
    if (state == State::CONTEXT_INIT) return Stage::CONTEXT_IN_PROGRESS;
    const bool generates = in_generation() || state == State::DISAGG_GENERATION_INIT ||
                           state == State::DISAGG_GENERATION_TRANS_IN_PROGRESS;
    return generates ? Stage::GENERATION_IN_PROGRESS : Stage::GENERATION_COMPLETE;
}

bool Request::finished() const {
    return state == State::GENERATION_COMPLETE || state == State::DISAGG_CONTEXT_TRANS_IN_PROGRESS;
}

bool Request::finished_due_to_length() const {
    return std::all_of(finish_reasons.begin(), finish_reasons.end(),
                       [](FinishReason reason) { return reason == FinishReason::LENGTH; });
}

void Request::finish_by(FinishReason reason) {
    std::replace(finish_reasons.begin(), finish_reasons.end(), FinishReason::NOT_FINISHED, reason);
    state = State::GENERATION_COMPLETE;
}

int Request::chunk() const {
    check(chunk_is_known(), "a chunk size exists only in the context phase or before generation starts");
    return chunk_;
}

void Request::set_chunk(int size) {
    check(chunk_is_known(), "a chunk size can be set only in the context phase or before generation starts");
    check(size >= 0, "a chunk size cannot be negative");
    chunk_ = std::min(size, remaining());
}

bool Request::last_chunk() const {
    const bool no_context = state == State::DISAGG_GENERATION_INIT || state == State::DISAGG_GENERATION_TRANS_COMPLETE;
    return no_context || position() + chunk() == prompt_len;
}

void Request::next_chunk() {
    check(in_context(), "chunks exist only in the context phase");
    const int step = chunk();
    positions_[0] += step;
    positions_[1] += step;
    set_chunk(0);
}

void Request::set_prepopulated(int length, int tokens_per_block) {
    check(length < prompt_len, "the prepopulated length must be less than the prompt's");
    prepopulated_[use_draft_model] = length;
    if (length <= 0) return;
    int size = chunk();
    if (length + size < prompt_len) {
        size = (length + size) / tokens_per_block * tokens_per_block - length;
        check(size <= chunk(), "the chunk grew");
    }
    positions_[use_draft_model] = length;
    set_chunk(size);
    check(last_chunk() || (position() + chunk_) % tokens_per_block == 0,
          "a chunk that is not the last one must end on a block's boundary");
}

}  // namespace bound
