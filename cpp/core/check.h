// Invariants. A broken one means that the books can no longer be trusted, so the core never catches it.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace kvfix {

class InvariantViolation : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

[[noreturn]] inline void violated(std::string_view why, const char* file, int line) {
    throw InvariantViolation(std::string(why) + " (" + file + ":" + std::to_string(line) + ")");
}

// The defaults name the caller's line, as std::source_location would; clang 14 has the builtins but not the class.
inline void check(bool ok, std::string_view why, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    if (!ok) [[unlikely]] {
        violated(why, file, line);
    }
}

}  // namespace kvfix
