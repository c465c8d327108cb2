// Counts the steps of loops and descents whose length a caller could drive up, so that a test can show that they stay
// few. In a release build KVFIX_STEP() expands to nothing.
#pragma once

#ifdef KVFIX_PAUSE_POINTS

#include <cstdint>

namespace kvfix {

inline thread_local std::uint64_t steps_taken = 0;

}  // namespace kvfix

#define KVFIX_STEP() static_cast<void>(++::kvfix::steps_taken)
#define KVFIX_STEPS(count) static_cast<void>(::kvfix::steps_taken += (count))
#else
#define KVFIX_STEP() static_cast<void>(0)
#define KVFIX_STEPS(count) static_cast<void>(0)
#endif
