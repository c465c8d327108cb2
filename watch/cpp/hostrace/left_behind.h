// Programs that are started without what loads the library: nothing of them is watched, and the report says so.
#pragma once

namespace hostrace {

void say_if_left_behind(const char* program, const char* const* environment);

}  // namespace hostrace
