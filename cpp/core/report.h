// Numbers about a state, computed from what its parts know.
#pragma once

#include "core/state.h"
#include "core/stats.h"

namespace kvfix {

KvCacheStats stats_of(const State& state);

}  // namespace kvfix
