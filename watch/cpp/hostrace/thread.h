// What the library keeps for each thread of the program.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "hostrace/guard.h"

namespace hostrace {

struct Thread {
    int id = 0;
    int parent = 0;                 // the thread that started this one, where that was seen
    void* parent_python = nullptr;  // and its Python state, null where it had none
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

Thread& self();
std::uint64_t now_ns();

}  // namespace hostrace
