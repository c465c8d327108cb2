// A mask of signals that the program asks for, without those that have to reach us.
#pragma once

#include <csignal>
#include <cstdint>

#include "hostrace/thread.h"

namespace hostrace {

// A thread with these blocked would be killed by its first touch, and a copy may begin at any time: they are open from
// the start, and the program is told what it asked for.
class Masked {
  public:
    explicit Masked(const sigset_t* set) {
        if (set != nullptr) {
            ours_ = *set;
            for (const int signal : kOurs) {
                bits |= sigismember(&ours_, signal) == 1 ? bit_of(signal) : 0;
                sigdelset(&ours_, signal);
            }
            given = &ours_;
        }
    }
    static void tell(sigset_t* set, std::uint64_t bits) {
        for (const int signal : kOurs) {
            if (set != nullptr && (bits & bit_of(signal)) != 0) {
                sigaddset(set, signal);
            }
        }
    }

    const sigset_t* given = nullptr;  // what the kernel gets
    std::uint64_t bits = 0;           // what was taken out of it

  private:
    sigset_t ours_{};
};

}  // namespace hostrace
