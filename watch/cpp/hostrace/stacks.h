// Stacks of the program. Taking one is cheap: a number for each distinct one. Python's part becomes text when it is
// first seen, while the code that it names is still there; native frames when they are reported.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "hostrace/owned_lock.h"
#include "hostrace/python.h"
#include "hostrace/text.h"

namespace hostrace {

// Native return addresses, ours included, ended by null.
inline constexpr std::size_t kFramesMax = 24;
using Frames = std::array<void*, kFramesMax + 1>;
// Of the caller; in a handler, from the instruction on that the signal interrupted.
void native_frames(Frames& frames, const void* from = nullptr);
void print_native(Text& text, void* const* frames);

class Stacks {
  public:
    void start();
    // Where the calling thread is; not for signal handlers.
    std::uint32_t take();
    void print(std::uint32_t stack, Text& text) const;
    // Of the calling thread, in a handler too. `frames` may hold the native ones, ended by null.
    void print_here(Text& text, void* const* frames) const;
    // A number for the same place as print_here would describe.
    std::uint64_t place_here(const void* instruction) const;

    Python python;

  private:
    static constexpr std::size_t kStacksMax = 8192;
    static constexpr std::size_t kTextBytes = std::size_t{16} << 20;
    struct Entry {
        std::uint64_t place;
        std::uint32_t python;  // its text, in texts_
        Frames native;
    };
    mutable OwnedLock lock_;
    std::array<Entry, kStacksMax> entries_{};
    std::size_t count_ = 0;
    char* texts_ = nullptr;
    std::size_t used_ = 0;
};

}  // namespace hostrace
