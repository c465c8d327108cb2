// Batch admission: a plan is made and found to fit, then applied. Until then nothing changes, from then on nothing can fail.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/admission_planner.h"
#include "core/results.h"
#include "core/state.h"

namespace kvfix::admit {

BatchAdmission batch(State& state, AdmissionPlanner& planner, std::span<const RequestPtr> requests,
                     std::optional<std::uint64_t> tokens_new_max);
// What the request would reuse, alone and now.
PrefixReuse analyze(const State& state, AdmissionPlanner& planner, const RequestPtr& request);

}  // namespace kvfix::admit
