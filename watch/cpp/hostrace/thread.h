// What the library keeps for each thread of the program.
#pragma once

#include <csignal>

#include <array>
#include <cstddef>
#include <cstdint>

#include "hostrace/guard.h"

namespace hostrace {

// A signal in a mask, as the kernel keeps it.
constexpr std::uint64_t bit_of(int signal) { return std::uint64_t{1} << (signal - 1); }

// Those that have to reach us: a touch of a protected page, the step behind it, and a call past the C library.
inline constexpr std::array kOurs{SIGSEGV, SIGTRAP, SIGSYS};
inline constexpr std::uint64_t kOurSignals = bit_of(SIGSEGV) | bit_of(SIGTRAP) | bit_of(SIGSYS);

struct Thread {
    int id = 0;
    int parent = 0;                 // the thread that started this one, where that was seen
    void* parent_python = nullptr;  // and its Python state, null where it had none
    std::uint64_t blocked = 0;      // the program's: it blocked these of our signals, which stay open
    std::uint64_t waiting = 0;      // of those, what was sent meanwhile
    bool tells_raw_calls = false;   // it asked for them (raw_calls.h)
    bool open_in_handler = false;   // every page, as long as a handler of the program runs
    bool inside = false;            // in a callback of ours: calls of the driver are our own
    // Pages that are open for the instruction which is being stepped over.
    std::array<Span, 8> stepping{};
    std::size_t steps = 0;
    std::uint64_t mask = 0;  // the program's signal mask, as the kernel keeps it
    // Touches in a row that found nothing in the way.
    std::uintptr_t retry_at = 0;
    std::uint64_t retry_ns = 0;
    int retries = 0;
};

// At its first call the thread is freed of what blocks our signals.
Thread& self();
// The first call of a thread may be in a handler of ours, which has them blocked: what counts is the mask to which the
// handler returns. The answer is that mask without ours.
std::uint64_t begin_in_handler(std::uint64_t mask);
std::uint64_t now_ns();

}  // namespace hostrace
