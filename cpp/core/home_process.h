// The process that something was made in. fork() copies one thread and every lock as it stands: a child has the memory of its
// parent's objects, but not the threads that worked for them nor the device memory that they keep books of.
#pragma once

#include <cstdint>

namespace kvfix {

// How many forks lie between this process and the one that loaded us.
std::uint64_t forks() noexcept;

class HomeProcess {
  public:
    // Whether this is a child of that process.
    bool left() const { return forks() != forks_; }
    // Throws std::runtime_error about `what` where it is.
    void check(const char* what) const {
        if (left()) [[unlikely]] {
            refuse(what);
        }
    }

  private:
    [[noreturn]] static void refuse(const char* what);
    std::uint64_t forks_ = forks();
};

}  // namespace kvfix
