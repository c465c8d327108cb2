// Stacks of the program. Taking one is cheap: a number for each distinct one. Python's part becomes text when it is first
// seen, while the code that it names is still there; native frames when they are reported.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "watch/owned_lock.h"

namespace kvfix::watch {

// Text in a buffer of somebody else's. It never overflows: what does not fit is left out.
class Text {
  public:
    Text(char* begin, std::size_t size) : begin_(begin), size_(size) {}
    Text& operator<<(const char* text);
    Text& operator<<(std::uint64_t number);
    Text& hex(std::uint64_t number);
    Text& bytes(const char* text, std::size_t count);
    const char* data() const { return begin_; }
    std::size_t size() const { return used_; }

  private:
    char* begin_;
    std::size_t size_;
    std::size_t used_ = 0;
};

// The interpreter in this process, found by name; without one, everything here says so.
class Python {
  public:
    void find();
    // The state of the calling thread, null where it runs no Python.
    void* state() const { return thread_state_ == nullptr ? nullptr : thread_state_(); }
    // A number for where the thread is in its Python code; 0 where this interpreter's frames are not known to us.
    std::uint64_t place(void* state) const;
    // File, line and function of each frame, written as the interpreter does for a crash: it takes no lock.
    void print(void* state, Text& text) const;
    bool present() const { return thread_state_ != nullptr; }
    bool prints() const { return dump_ != nullptr; }

  private:
    struct Layout {
        int version;
        bool through_cframe;
        std::size_t current, code, previous, instruction;
    };
    void* (*thread_state_)() = nullptr;
    void (*dump_)(int, void*) = nullptr;
    const Layout* layout_ = nullptr;
    int scratch_ = -1;
};

// Native return addresses of the caller, ended by null.
inline constexpr std::size_t kFramesMax = 24;
using Frames = std::array<void*, kFramesMax + 1>;
void native_frames(Frames& frames, int skip);
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

}  // namespace kvfix::watch
