// Memory that is touched for the program after the call that asks for it has returned: by the kernel (io_uring, libaio,
// robust locks of a thread that ends), or by a thread of the C library (aio). No call is there to keep pages open, so once such memory may be pinned, nothing
// is protected any more.
#pragma once

#include <csignal>

#include <array>
#include <cstddef>

namespace hostrace {

void touched_later(const void* memory, std::size_t bytes);

// The C library blocks all signals in the threads that it starts for a timer, so the first touch of a protected page in
// one of them would end the program.
void timer_comes(const sigevent* event);

// Around each call into the kernel that is made by its number.
void before_call(long number, const std::array<long, 6>& arguments);
void after_call(long number, const std::array<long, 6>& arguments, long result);

}  // namespace hostrace
