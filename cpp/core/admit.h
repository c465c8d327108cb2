// Batch admission: a plan is made and found to fit, then applied. Until then nothing changes, from then on nothing can fail.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/admission_planner.h"
#include "core/results.h"
#include "core/state.h"

namespace kvfix::admit {

// Prompts are reserved in chunks of up to `chunk_tokens`, kNone for all at once: of what the requests reuse follows the first.
BatchAdmission batch(State& state, AdmissionPlanner& planner, std::span<const RequestPtr> requests,
                     std::optional<std::uint64_t> tokens_new_max, std::uint32_t chunk_tokens);
// The reuse that the request would have, alone and now, if it were admitted so.
PrefixReuse analyze(const State& state, AdmissionPlanner& planner, const RequestPtr& request,
                    std::uint32_t chunk_tokens);

}  // namespace kvfix::admit
