// Thrown when a manager does something that docs/block-manager.md rules out.
#pragma once

#include <stdexcept>
#include <string>

namespace kvfix::world {

class Broken : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// `what` is the text, or returns it. It is called only if the text is needed.
template <class What>
void promise(bool kept, What&& what) {
    if (!kept) {
        if constexpr (requires { what(); }) {
            throw Broken(what());
        } else {
            throw Broken(what);
        }
    }
}

inline std::string text(std::uint64_t number) { return std::to_string(number); }

}  // namespace kvfix::world
