// Calls into the kernel that go past the C library: those of liburing, of Rust's rustix, of sanitizers, of assembly.
// Linux hands them to us as SIGSYS (system-call user dispatch, from 5.11 on, x86-64), and the C library's go through as
// before.
#pragma once

namespace hostrace {

// Go makes its own on stacks that have no room for a handler of ours. Whether the program or one of its libraries has a
// note of Go's linker.
bool has_code_of_go();

// Once, before there is a watcher. Where the machine hands over none, such calls fail in protected pages.
void ask_for_raw_calls();
// Each thread has to ask for its own.
void ask_for_raw_calls_of_this_thread();
// None is handed over any longer, in any thread. Those that are on their way have arrived when this returns.
void let_raw_calls_through();

}  // namespace hostrace
