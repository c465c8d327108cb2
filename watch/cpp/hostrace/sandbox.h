// A program that has its calls into the kernel handed to itself (system-call user dispatch), or forbids some (seccomp), has
// ours handed over or forbidden with them. Where that is so, hostrace goes out of the way before, for good.
#pragma once

#include <array>

namespace hostrace {

// Before a call into the kernel, by its number. True where it closes the process in, and must be made by the program
// itself, not by a handler.
bool closes_in(long number, const std::array<long, 6>& arguments);

// Whether the program has its calls handed to itself.
bool has_its_own_dispatch();

}  // namespace hostrace
