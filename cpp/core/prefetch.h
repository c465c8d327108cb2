// Asks for memory that will be read soon.
#pragma once

namespace kvfix {

// To GCC a function that only reads and prefetches has no effect, and a call to one goes. The empty statement is one.
inline void prefetch_memory(const void* at) {
    __builtin_prefetch(at);
    __asm__ volatile("" : : "r"(at));
}

}  // namespace kvfix
