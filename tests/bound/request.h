// The part of a request that C++ keeps: tokens, position, chunk, state.
#pragma once

#include <map>
#include <utility>

#include "types.h"

namespace bound {

// The order matters: a scheduler takes the requests that have reached one state and not yet another.
enum class State : int {
    DISAGG_TRANS_ERROR = -1,
    UNKNOWN = 0,
    ENCODER_INIT = 1,
    DISAGG_GENERATION_INIT = 8,
    DISAGG_GENERATION_TRANS_IN_PROGRESS = 9,
    CONTEXT_INIT = 10,
    DISAGG_CONTEXT_INIT_AND_TRANS = 11,
    DISAGG_GENERATION_TRANS_COMPLETE = 12,
    GENERATION_IN_PROGRESS = 13,
    GENERATION_TO_COMPLETE = 14,
    GENERATION_COMPLETE = 20,
    DISAGG_CONTEXT_TRANS_IN_PROGRESS = 21,
    DISAGG_CONTEXT_COMPLETE = 22,
};

enum class RequestType { CONTEXT_AND_GENERATION, CONTEXT_ONLY, GENERATION_ONLY };
enum class FinishReason { NOT_FINISHED, END_ID, STOP_WORDS, LENGTH, TIMED_OUT, CANCELLED };
enum class Stage { QUEUED, ENCODER_IN_PROGRESS, CONTEXT_IN_PROGRESS, GENERATION_IN_PROGRESS, GENERATION_COMPLETE };

struct SamplingConfig {
    int beam_width = 1;
    std::optional<int> num_return_sequences;
};

struct TokenRangeRetention {
    int token_start = 0;
    std::optional<int> token_end;
    int priority = kDefaultPriority;
    std::optional<double> duration_ms;
};

struct RetentionConfig {
    std::vector<TokenRangeRetention> ranges;
    int decode_priority = kDefaultPriority;
    std::optional<double> decode_duration_ms;

    std::optional<int> priority_at(int token) const;
};

struct CacheCounts {
    int alloc_total = 0;
    int alloc_new = 0;
    int reused = 0;
    int missed = 0;

    double hit_rate() const { return reused == 0 ? 0.0 : double(reused) / double(reused + missed); }
};

class Request {
  public:
    Request() = default;
    virtual ~Request() = default;
    // The binding code calls this once, after it has filled the members below.
    void start(const std::vector<Token>& input);

    int num_tokens(int beam) const { return int(tokens.at(std::size_t(beam)).size()); }
    int max_beam_num_tokens() const;
    int num_generated() const { return max_beam_num_tokens() - prompt_len; }
    Token token(int beam, int position) const { return tokens.at(std::size_t(beam)).at(std::size_t(position)); }
    Tokens unique_tokens(int beam) const;
    int add_token(Token token, int beam);
    void add_tokens(const std::vector<Token>& by_beam);
    void set_generated(const std::vector<std::vector<Token>>& by_beam);
    void pause(int max_input_len);

    bool in_context() const { return state == State::CONTEXT_INIT || state == State::DISAGG_CONTEXT_INIT_AND_TRANS; }
    bool in_generation() const;
    bool chunk_is_known() const;
    bool has_draft_tokens() const { return draft_tokens && !draft_tokens->empty(); }
    int num_draft_tokens() const { return has_draft_tokens() ? int(draft_tokens->size()) : 0; }
    Stage stage() const;
    bool finished() const;
    bool finished_due_to_length() const;
    void finish_by(FinishReason reason);
    void set_finish_reason(FinishReason reason, int beam) { finish_reasons.at(std::size_t(beam)) = reason; }

    int position() const { return positions_[use_draft_model]; }
    void set_position(int value) { positions_[0] = positions_[1] = value; }
    int prepopulated() const { return prepopulated_[use_draft_model]; }
    int remaining() const { return prompt_len - position(); }
    int chunk() const;
    void set_chunk(int size);
    bool first_chunk() const { return position() == prepopulated(); }
    bool last_chunk() const;
    void next_chunk();
    void set_prepopulated(int length, int tokens_per_block);

    RequestId id = 0;
    std::optional<RequestId> parent_id;
    int prompt_len = 0;
    int orig_prompt_len = 0;
    int max_new_tokens = 0;
    SamplingConfig sampling;
    std::vector<std::vector<Token>> tokens;
    std::optional<std::vector<std::uint64_t>> extra_ids;
    std::vector<Token> last_tokens;
    std::optional<std::vector<Token>> draft_tokens;
    std::optional<std::vector<Token>> encoder_tokens;
    std::optional<int> encoder_output_len;
    bool has_encoder_features = false;
    State state = State::CONTEXT_INIT;
    RequestType type = RequestType::CONTEXT_AND_GENERATION;
    std::optional<std::uint64_t> lora_task_id;
    std::optional<std::uint64_t> cache_salt_id;
    std::optional<std::vector<std::vector<std::int32_t>>> multimodal_hashes;
    std::optional<std::vector<std::int32_t>> multimodal_positions;
    std::optional<std::vector<std::int32_t>> multimodal_lengths;
    std::optional<RetentionConfig> retention;
    std::optional<int> seq_slot;
    std::optional<Token> end_id;
    std::optional<Token> pad_id;
    std::vector<FinishReason> finish_reasons;
    // The pass that estimates it may otherwise only read the request.
    mutable int estimated_reusable_tokens = 0;
    CacheCounts counts;
    int decoding_iter = 0;
    int max_sent_token_len = 0;
    float priority = 0.5F;
    bool is_dummy = false;
    bool use_draft_model = false;
    bool streaming = false;

  private:
    // Target and draft each have a position; use_draft_model says which one counts.
    int positions_[2] = {0, 0};
    int prepopulated_[2] = {0, 0};
    int chunk_ = 0;
};

}  // namespace bound
