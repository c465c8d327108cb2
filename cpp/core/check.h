// Invariants. A broken one means that the books cannot be trusted any more: it is never caught inside the core.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kvfix {

class InvariantViolation : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

[[noreturn]] inline void violated(std::string_view why, std::source_location at) {
    throw InvariantViolation(std::string(why) + " (" + at.file_name() + ":" + std::to_string(at.line()) + ")");
}

inline void check(bool ok, std::string_view why, std::source_location at = std::source_location::current()) {
    if (!ok) [[unlikely]] {
        violated(why, at);
    }
}

}  // namespace kvfix
