#include "replay/generating.h"

#include <algorithm>

namespace kvfix::replay {
namespace {

std::int64_t divided_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit; }

}  // namespace

void Generating::start(RequestId index, std::uint32_t prompt_length) {
    // The last token of an answer is never fed back, so an answer of n tokens takes n - 1 positions.
    const auto left = static_cast<std::int64_t>(requests_[index].answer.size()) - 1;
    if (left <= 0) {
        empty_.push_back({index, prompt_length});
        return;
    }
    const std::int64_t growths = divided_up(left, tokens_per_iteration_);
    live_.emplace(begun_, Answer{.index = index,
                                 .prompt_length = prompt_length,
                                 .begun = growths_,
                                 .left = left,
                                 .growths = growths,
                                 .told = 0});
    lacking_[growths_ + growths] += growths * tokens_per_iteration_ - left;
    calendar_.emplace(growths_ + 1, begun_);
    ++begun_;
}

std::int64_t Generating::tokens_next() const {
    const auto lacking = lacking_.find(growths_ + 1);
    return static_cast<std::int64_t>(live_.size()) * tokens_per_iteration_ -
           (lacking == lacking_.end() ? 0 : lacking->second);
}

void Generating::list_computed(bool of_all, std::vector<Computed>& out) {
    look_up();
    const auto add = [&](const Answer& answer) {
        out.push_back({answer.index, static_cast<std::uint32_t>(length(answer, growths_))});
    };
    if (of_all) {
        std::ranges::for_each(live_, [&](const auto& entry) { add(entry.second); });
    } else {
        std::ranges::for_each(due_, [&](std::uint64_t number) { add(live_.at(number)); });
    }
}

void Generating::grow(BlockManager& manager) {
    look_up();
    ++growths_;
    if (due_.empty()) {
        return;
    }
    std::vector<RequestId> ids;
    std::vector<std::uint32_t> counts;
    std::vector<std::uint32_t> computed;
    std::vector<TokenId> tokens;
    for (const std::uint64_t number : due_) {
        Answer& answer = live_.at(number);
        const std::int64_t grown = length(answer, growths_) - answer.prompt_length;
        const auto values = requests_[answer.index].answer.begin();
        ids.push_back(answer.index);
        counts.push_back(static_cast<std::uint32_t>(grown - answer.told));
        computed.push_back(static_cast<std::uint32_t>(answer.prompt_length + answer.told));
        tokens.insert(tokens.end(), values + answer.told, values + grown);
        answer.told = grown;
    }
    manager.add_tokens(ids, counts, tokens, computed);
}

std::vector<Computed> Generating::take_finished() {
    std::vector<Computed> finished;
    for (const std::uint64_t number : due_) {
        const Answer& answer = live_.at(number);
        if (answer.told == answer.left) {
            finished.push_back({answer.index, static_cast<std::uint32_t>(answer.prompt_length + answer.left)});
            live_.erase(number);
        } else {
            calendar_.emplace(answer.begun + next(answer), number);
        }
    }
    due_.clear();
    lacking_.erase(growths_);
    finished.insert(finished.end(), empty_.begin(), empty_.end());
    empty_.clear();
    return finished;
}

void Generating::look_up() {
    while (!calendar_.empty() && calendar_.top().first == growths_ + 1) {
        due_.push_back(calendar_.top().second);
        calendar_.pop();
    }
}

std::int64_t Generating::length(const Answer& answer, std::int64_t growths) const {
    return answer.prompt_length + std::min((growths - answer.begun) * tokens_per_iteration_, answer.left);
}

// The first of its future growths that needs a block, or before which a block became full and computed.
std::int64_t Generating::next(const Answer& answer) const {
    const std::int64_t done = growths_ - answer.begun;
    const std::int64_t full = answer.prompt_length + (done - 1) * tokens_per_iteration_;  // before the last growth
    const std::int64_t to_boundary = (full / tokens_per_block_ + 1) * tokens_per_block_ - answer.prompt_length;
    const std::int64_t crossing = to_boundary / tokens_per_iteration_ + 1;
    const std::int64_t after = divided_up(to_boundary, tokens_per_iteration_) + 1;
    return std::min(crossing > done ? crossing : after, answer.growths);
}

}  // namespace kvfix::replay
