// Counts the steps of a call (core/steps.h).
#pragma once

#include <cstdint>

#include "core/steps.h"

namespace kvfix::testing {

template <class Call>
std::uint64_t steps_of(Call&& call) {
    const std::uint64_t before = steps_taken;
    call();
    return steps_taken - before;
}

}  // namespace kvfix::testing
