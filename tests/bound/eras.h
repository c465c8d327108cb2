// How the eras differ in behaviour. How they differ in their declarations is in bind_*.h.
#pragma once

#include <atomic>

namespace bound {

struct Rules {
    const char* era;
    // store_context_blocks stops at the position and includes sliding windows. Without this, it stores the whole
    // prompt.
    bool store_to_position;
    // store_blocks_for_reuse returns all pinned ids, and unpin_blocks_by_id takes exactly the listed blocks. Without
    // this, it returns one id, and unpinning that id also unpins its ancestors.
    bool list_pins;
    // A pin by store_blocks_for_reuse takes its block out of the queue. Without this, it stays there, and may be taken
    // while it is pinned: where another request, which is gone, had stored it.
    bool pins_leave_queue;
    // One connector query for all windows, under the tree's lock. Without this, one query for each window, outside the
    // lock.
    bool one_query;
    // The capacity pass subtracts blocks in use and writes estimated_reusable_tokens.
    bool estimates;
    // A release stores only what was computed, as upstream's repair of spring 2026 does.
    std::atomic<bool> computed_only{false};
    // Early 2026 builds of S carry list pins as well.
    std::atomic<bool> forced_list_pins{false};

    bool pins_by_list() const { return list_pins || forced_list_pins; }
};

template <int N>
struct Era {
    static constexpr int number = N;
    static constexpr bool is_a = N == 0;
    static constexpr bool is_s = N == 1;
    static constexpr bool is_b2 = N == 2;
    // D has C's declaration. Nobody has read D's own, so this is inferred.
    static constexpr bool is_late = N >= 3;
    static Rules rules;
};

using EraA = Era<0>;
using EraS = Era<1>;
using EraB2 = Era<2>;
using EraC = Era<3>;
using EraD = Era<4>;

template <>
inline Rules EraA::rules{"A", false, false, false, false, false};
template <>
inline Rules EraS::rules{"S", false, false, false, false, false};
template <>
inline Rules EraB2::rules{"B2", true, true, false, true, false};
template <>
inline Rules EraC::rules{"C", true, true, true, true, true};
template <>
inline Rules EraD::rules{"D", true, true, true, true, true};

}  // namespace bound
