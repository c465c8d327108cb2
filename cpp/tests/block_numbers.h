// Block numbers as literals for tests: 7_b.
#pragma once

#include "core/types.h"

namespace kvfix::testing {

constexpr BlockIndex operator""_b(unsigned long long value) { return BlockIndex{static_cast<std::uint32_t>(value)}; }

}  // namespace kvfix::testing
