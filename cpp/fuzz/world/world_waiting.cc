// Requests that a scheduler asks about repeatedly before they are admitted. The manager's memory of the first answer
// must not change a later one.
#include <memory>
#include <utility>

#include "fuzz/world/world.h"

namespace kvfix::world {
namespace {

constexpr std::size_t kWaitingMost = 4;
constexpr std::uint32_t kLongestPrompt = 64;

// A copy of the request about which no question was asked.
RequestPtr copy_of(const Request& request) {
    return std::make_shared<const Request>(request.id, request.tokens, request.beam_width, request.lora_id,
                                           request.salt, request.extra_keys, request.retention);
}

}  // namespace

void World::ask() {
    if (waiting_.empty() || (waiting_.size() < kWaitingMost && random_.one_in(3))) {
        waiting_.push_back(request_for(source_.prompt(kLongestPrompt)));
    }
    const RequestPtr request = random_.pick(waiting_).request;
    const auto chunk = random_.one_in(2) ? std::optional(1 + random_.small(4 * block_tokens())) : std::nullopt;
    promise(analyze(request, chunk) == analyze(copy_of(*request), chunk),
            "a request that was asked about finds something else than its copy");
    const std::uint32_t more = random_.small(4 * block_tokens());
    const auto room = [&](const RequestPtr& of) {
        return twins_.look([&](BlockManager& manager) { return manager.blocks_to_admit(of, more, chunk); }).answer;
    };
    promise(room(request) == room(copy_of(*request)), "a request that was asked about needs other room than its copy");
    ++tally_.asked_again;
}

// A request that waits, or a new one.
World::Ask World::next_ask(std::uint32_t longest) {
    if (waiting_.empty() || random_.one_in(2)) {
        return request_for(source_.prompt(longest));
    }
    Ask next = std::move(waiting_.back());
    waiting_.pop_back();
    return next;
}

}  // namespace kvfix::world
