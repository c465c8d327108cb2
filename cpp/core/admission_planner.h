// Makes admission plans. It reads the state and changes nothing there; what it has of its own is memory that it uses again, and what
// its walks have found. Plans do not depend on either.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/admission_plan.h"
#include "core/match_book.h"

namespace kvfix {

class AdmissionPlanner {
  public:
    // Plans the reuse of the requests, whether they fit or not. The plan stays until the next call. Prompts are
    // reserved in chunks of up to so many tokens.
    const AdmissionPlan& match(const State& state, std::span<const RequestPtr> requests,
                               std::uint32_t chunk_tokens = kNone);

    // Returns the number of matched requests that are admitted, in order, under the budget, after copies without room
    // were given up. Throws OutOfBlocks if they cannot be served without any copy.
    std::size_t fit(const State& state, std::optional<std::uint64_t> tokens_new_max);
    // The same for the first `count` requests, without a budget. False instead of OutOfBlocks.
    bool try_fit(const State& state, std::size_t count);
    // Window by window, what the first `count` requests would take of the slots free or cached, after try_fit().
    std::vector<std::uint64_t> slots_taken(const State& state, std::size_t count);

    // Throws std::logic_error where something else is remembered than a walk would find.
    void check_remembered(const State& state) const;

  private:
    struct Room {
        std::uint64_t needed = 0;
        std::uint64_t free = 0;
        std::uint64_t taken = 0;  // slots taken of those there
    };

    // admission_match.cc
    void match_request(const State& state, const RequestPtr& request);
    void match_window(const State& state, const Window& window, const RequestPtr& request, WindowMatch& match);
    Run first_run(const State& state, const Window& window, const RequestPtr& request);
    Run walk_from_root(const State& state, const Window& window, const Request& request);
    ParentRef descend(const Window& window, const Request& request, ParentRef parent, std::uint32_t& position);
    Run walk(const State& state, const Window& window, const Request& request, ParentRef root, std::uint32_t begin);
    void find_later_runs(const State& state, const Window& window, const Request& request, WindowMatch& match);
    void find_source(const Window& window, const Request& request, ParentRef parent, Run& run) const;
    std::uint32_t reusable(const Window& window, WindowMatch& match, std::uint32_t tokens_max) const;
    BlockIndex source_at(const WindowMatch& match, std::uint32_t position) const;
    void set_reuse(const State& state, RequestPlan& plan, std::uint32_t reuse);

    // admission_partial.cc
    void settle_partials(const State& state);
    void settle_partial(const State& state, RequestPlan& plan);
    PartialWay way_of(const State& state, const Window& window, const RequestPlan& plan, BlockIndex source) const;
    std::uint32_t taker_of(BlockIndex source, std::size_t window) const;

    // admission_room.cc
    std::size_t within_budget(std::optional<std::uint64_t> tokens_new_max) const;
    bool may_be_short(const State& state, std::size_t count) const;
    Room room_without_copies(const Window& window, std::size_t count);
    void keep_copies(const State& state, RequestPlan& plan);
    bool locks_evictable(const Window& window, const WindowMatch& match) const;
    void give_up_partial(const State& state, RequestPlan& plan);

    // A mark per block and window: what a pass over the plan has seen.
    void begin_marking(const State& state);
    std::uint32_t& mark(std::size_t window, BlockIndex block) { return marks_[window][number(block)]; }
    bool marked(std::size_t window, BlockIndex block) const { return marks_[window][number(block)] == serial_; }
    WindowMatch& match_of(const RequestPlan& plan, std::size_t window) {
        return plan_.matches[plan.match_begin + window];
    }

    AdmissionPlan plan_;
    std::vector<MatchBook> books_;                    // [window]: its first runs
    std::uint32_t serial_ = 0;                        // marks of this pass; marks of older ones are smaller
    std::vector<std::vector<std::uint32_t>> marks_;   // [window][block]
    std::vector<std::vector<std::uint32_t>> takers_;  // [window][block]: the match that takes it over
    std::vector<Room> rooms_;                         // per window, of the last try_fit() that looked closely
};

}  // namespace kvfix
