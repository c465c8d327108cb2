// The process in which an object was made. fork() copies one thread, and every lock as it stands. A child has its
// parent's objects in memory, but neither the threads that worked for them nor the device memory that they account for.
#pragma once

#include <cstdint>
#include <string>

namespace kvfix {

// The number of forks between this process and the one that loaded the library.
std::uint64_t forks() noexcept;

class HomeProcess {
  public:
    // Whether this process is a child of the one that made the object.
    bool left() const { return forks() != forks_; }
    // Throws std::runtime_error about `what` if it is.
    void check(const char* what) const {
        if (left()) [[unlikely]] {
            refuse(what);
        }
    }
    // Why a child may not use it, for an error of another type.
    static std::string refusal(const std::string& what);

  private:
    [[noreturn]] static void refuse(const char* what);
    std::uint64_t forks_ = forks();
};

}  // namespace kvfix
