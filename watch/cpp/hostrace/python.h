// The interpreter in this process. Its frames are read where they lie, with no lock and no call into it: a signal
// handler and a thread without the interpreter's lock may do that. What another thread has may change meanwhile, and is
// then wrong or left out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hostrace/text.h"

namespace hostrace {

class Python {
  public:
    // Looked for by name; without one, or with one that is not known here, there are no frames.
    void find();
    // The state of the calling thread, null where it runs no Python.
    void* state() const { return thread_state_ == nullptr ? nullptr : thread_state_(); }
    // A number for where the thread is in its Python code, 0 where that is not known.
    std::uint64_t place(void* state) const;
    // File, line and function of each frame, the innermost first, as items of a list.
    void print(void* state, Text& text) const;
    bool unknown() const { return thread_state_ != nullptr && layout_ == nullptr; }

  private:
    struct Layout;
    static const Layout kLayouts[];

    void* (*thread_state_)() = nullptr;
    const void* code_type_ = nullptr;
    const Layout* layout_ = nullptr;
};

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value);

}  // namespace hostrace
