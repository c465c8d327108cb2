// How programs find functions at run time.
#pragma once

namespace hostrace {

// Whether a library of the program calls the C library itself, where others call us.
bool calls_are_bound_past_us();

}  // namespace hostrace
