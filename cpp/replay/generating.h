// The sequences whose answers are growing. How each will grow is known when it starts. So a calendar names the
// iterations in which something happens: a sequence needs a block, has filled one, or ends. The manager gets all tokens
// between two of these at once, which changes none of its decisions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <utility>
#include <vector>

#include "core/block_manager.h"
#include "core/types.h"
#include "replay/requests.h"

namespace kvfix::replay {

// A request and how many of its leading positions are computed.
struct Computed {
    RequestId index;
    std::uint32_t positions;
};

class Generating {
  public:
    Generating(const Requests& requests, std::int64_t tokens_per_block, std::int64_t tokens_per_iteration)
        : requests_(requests), tokens_per_block_(tokens_per_block), tokens_per_iteration_(tokens_per_iteration) {}

    std::size_t size() const { return live_.size() + empty_.size(); }
    void start(RequestId index, std::uint32_t prompt_length);
    // The number of tokens by which all of them together grow in this iteration.
    std::int64_t tokens_next() const;
    // The number of iterations, from the next on, in which all of them grow within blocks that they have.
    std::int64_t quiet() const { return calendar_.empty() ? 0 : calendar_.top().first - growths_ - 1; }
    void skip(std::int64_t iterations) { growths_ += iterations; }
    // Appends, for each sequence that has something to do in this iteration, or for all, its positions before it.
    void list_computed(bool of_all, std::vector<Computed>& out);
    void grow(BlockManager& manager);
    std::vector<Computed> take_finished();

  private:
    struct Answer {
        RequestId index;
        std::int64_t prompt_length;
        std::int64_t begun;    // growths of all sequences before its first one
        std::int64_t left;     // positions that it grows by in total
        std::int64_t growths;  // of its own, until it ends
        std::int64_t told;     // positions that the manager knows
    };
    using Due = std::pair<std::int64_t, std::uint64_t>;  // the growth, and the sequence that is due in it

    void look_up();
    std::int64_t length(const Answer& answer, std::int64_t growths) const;
    std::int64_t next(const Answer& answer) const;

    const Requests& requests_;
    const std::int64_t tokens_per_block_;
    const std::int64_t tokens_per_iteration_;
    std::int64_t growths_ = 0;
    std::uint64_t begun_ = 0;
    std::map<std::uint64_t, Answer> live_;  // in the order in which they began, which is the order in which they grow
    std::priority_queue<Due, std::vector<Due>, std::greater<>> calendar_;
    std::vector<std::uint64_t> due_;  // in this iteration
    // the number of tokens by which a growth is smaller, because answers end with it
    std::map<std::int64_t, std::int64_t> lacking_;
    std::vector<Computed> empty_;  // those that began in this iteration with nothing to grow by
};

}  // namespace kvfix::replay
