// The requests of a trace, named by their index in it. A prompt is built when it is asked for, because all of them
// together would take more memory than the pools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/request.h"
#include "core/types.h"

namespace kvfix::replay {

// A symbol spells tokens: symbol, symbol + 1 and so on, wrapped around after `span` and offset by `base`.
struct Spelling {
    TokenId base;
    std::uint32_t span;
    std::uint32_t tokens_per_symbol;
};

struct Source {
    std::vector<TokenId> symbols;  // of the prompt: to be spelled, or its tokens
    bool is_spelled;
    std::uint32_t prompt_length;  // of a spelled one, whose last symbol may stand for fewer tokens
    std::vector<TokenId> answer;
    double timestamp_ms;
    std::uint64_t blocks_needed;  // the most that it needs while it runs
    std::optional<std::int64_t> lora_id;
    Salt salt;
};

class Requests {
  public:
    explicit Requests(const Spelling& spelling) : spelling_(spelling) {}

    // Throws std::invalid_argument if the symbols do not spell the prompt.
    void add(Source source);
    std::size_t size() const { return sources_.size(); }
    const Source& operator[](RequestId index) const { return sources_[index]; }
    // Throws std::out_of_range.
    std::vector<TokenId> prompt(RequestId index) const;
    RequestPtr request(RequestId index) const;

  private:
    const Spelling spelling_;
    std::vector<Source> sources_;
};

}  // namespace kvfix::replay
