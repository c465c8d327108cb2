// The sequences whose answers are growing. How each will grow is known when it starts, so a calendar names the iterations in which
// something happens: it needs a block, it has filled one, it ends. The manager gets the tokens between two of these together,
// which changes none of its decisions.
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
    // By which all grow together in this iteration.
    std::int64_t tokens_next() const;
    // Iterations from now on in which all grow within blocks that they have.
    std::int64_t quiet() const { return calendar_.empty() ? 0 : calendar_.top().first - growths_ - 1; }
    void skip(std::int64_t iterations) { growths_ += iterations; }
    // Of each that has something to do in this iteration, or of all: its positions before it. Appended.
    void list_computed(bool of_all, std::vector<Computed>& out);
    void grow(BlockManager& manager);
    std::vector<Computed> take_finished();

  private:
    struct Answer {
        RequestId index;
        std::int64_t prompt_length;
        std::int64_t begun;    // growths of all before its first
        std::int64_t left;     // positions that it grows by in all
        std::int64_t growths;  // of its own, until it ends
        std::int64_t told;     // positions that the manager knows of
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
    std::map<std::uint64_t, Answer> live_;  // by when they began, which is the order in which they grow
    std::priority_queue<Due, std::vector<Due>, std::greater<>> calendar_;
    std::vector<std::uint64_t> due_;                // in this iteration
    std::map<std::int64_t, std::int64_t> lacking_;  // tokens by which a growth is smaller, because answers end with it
    std::vector<Computed> empty_;                   // began in this iteration with nothing to grow by
};

}  // namespace kvfix::replay
