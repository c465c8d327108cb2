#include "core/retain.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "core/publish.h"
#include "core/review.h"

namespace kvfix::retain {
namespace {

constexpr std::int64_t kTimeMaxMs = std::int64_t{1} << 62;

}  // namespace

void set(State& state, Window& window, BlockIndex block, Priority priority, std::optional<std::uint32_t> duration_ms) {
    Block& record = window.blocks[block];
    if (record.has_duration) {
        forget(window, block);
    }
    if (duration_ms) {
        record.has_duration = true;
        window.clocks.duration_ms[block] = *duration_ms;
    }
    if (record.priority != priority) {
        record.priority = priority & 0x7fU;
        requeue(window, block);
        publish(state, window, EventKind::updated, block, record.has(kPrimary) ? Tier::primary : Tier::host);
    }
}

void start_clock(const State& state, Window& window, BlockIndex block) {
    RetentionClocks& clocks = window.clocks;
    if (window.blocks[block].has_duration && !clocks.deadlines.contains(block)) {
        const RetentionClocks::Deadline deadline{state.now_ms + clocks.duration_ms.at(block), clocks.started++, block};
        clocks.deadlines.emplace(block, deadline);
        clocks.expiring.insert(deadline);
        clocks.digest.add(deadline.digest());
    }
}

void stop_clock(Window& window, BlockIndex block) {
    if (!std::as_const(window.blocks)[block].has_duration) {
        return;
    }
    RetentionClocks& clocks = window.clocks;
    if (const auto running = clocks.deadlines.find(block); running != clocks.deadlines.end()) {
        clocks.digest.remove(running->second.digest());
        clocks.expiring.erase(running->second);
        clocks.deadlines.erase(running);
    }
}

void forget(Window& window, BlockIndex block) {
    stop_clock(window, block);
    if (window.blocks[block].has_duration) {
        window.clocks.duration_ms.erase(block);
        window.blocks[block].has_duration = false;
    }
}

void advance_time(State& state, std::int64_t now_ms) {
    if (now_ms < state.now_ms) {
        throw std::invalid_argument("now_ms is " + std::to_string(now_ms) + ", before " + std::to_string(state.now_ms) +
                                    " given earlier; use a monotonic clock");
    }
    if (now_ms > kTimeMaxMs) {
        throw std::invalid_argument("now_ms is " + std::to_string(now_ms) + ": at most " + std::to_string(kTimeMaxMs) +
                                    ", so that durations can be added to it");
    }
    state.now_ms = now_ms;
    for (Window& window : state.windows) {
        const auto& expiring = window.clocks.expiring;
        while (!expiring.empty() && expiring.begin()->at_ms <= now_ms) {
            set(state, window, expiring.begin()->block, kPriorityDefault, std::nullopt);
        }
    }
}

}  // namespace kvfix::retain
