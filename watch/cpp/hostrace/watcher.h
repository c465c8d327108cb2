// The parts of the library, as one. It is made once, by the driver's call of InitializeInjection, and never destroyed:
// threads of the program run until the very end.
#pragma once

#include <cstdint>

#include "hostrace/digests.h"
#include "hostrace/guard.h"
#include "hostrace/memory_calls.h"
#include "hostrace/ranges.h"
#include "hostrace/report.h"
#include "hostrace/stacks.h"

namespace hostrace {

struct Watcher {
    // Reports go to the folder. A thread that races is held for so long at most; 0 is not at all.
    // With `order`, what has ended stays guarded until the program has observed that.
    Watcher(const char* folder, std::uint64_t hold_limit_ns, bool order, bool gates, Pages& pages);

    const std::uint64_t hold_ns;
    const bool by_order;
    // A stream that waits for a value is busy, and no more than that.
    const bool gates_are_busy;
    Counts& counts;
    Ranges ranges;
    LeftAlone left_alone;
    Guard guard;
    Stacks stacks;
    Report report;
    Digests digests;

    // One race: say it, and in hold mode wait for the device.
    void raced(const Race& race);
    // The program has observed something: what has ended by then is let go, or compared.
    void observed();
    // Before the kernel touches memory for the program, perhaps after a long wait; what it returns must be closed behind
    // the call. Memory that is nowhere near pinned memory costs two reads.
    Opening settle(std::uintptr_t begin, std::size_t bytes, Access access, const char* how);
    // For a handler of the program that interrupted us at our books: waiting for ourselves would never end. False where
    // none of it is pinned, or it cannot be opened.
    bool open_past_the_books(Span touched);
    // Memory that goes back to its owner.
    void give_back(std::uintptr_t begin, std::size_t bytes, const char* how);
};

// Null until the library has been started, and in forked children.
Watcher* watcher();
void set_watcher(Watcher* started);
// A forked child has pages of its own, and finds all of them open from here on.
void end_in_child();
// True once, in a child that no handler of forks has told.
bool ended_in_child();
// It has its parent's memory, our books among it, and signals of its own: what it sets is not the parent's.
bool in_child_of_vfork();

// From now on no page is protected: the kernel touches memory for the program past us, and would fail there. What copies
// read is compared instead. May be called before there is a watcher; the first reason is kept, and noted in the report.
void stop_protecting(const char* why);
// The same, and nothing is watched at all, where that is not possible any longer.
void stop_watching(const char* why);
// Null while pages are protected.
const char* why_nothing_is_protected();

}  // namespace hostrace
