// What a signal's context says on each machine: which instruction faulted, and how. Stepping over one instruction takes
// the processor's trap flag; aarch64 has none that a program may set.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstring>

namespace hostrace::machine {

#if defined(__x86_64__)

inline constexpr bool kSteps = true;
inline constexpr greg_t kTrapFlag = 0x100;
inline constexpr greg_t kWriteFault = 2;

inline const void* instruction(const ucontext_t& context) {
    return reinterpret_cast<const void*>(context.uc_mcontext.gregs[REG_RIP]);
}
inline bool writes(const ucontext_t& context) { return (context.uc_mcontext.gregs[REG_ERR] & kWriteFault) != 0; }
inline void step(ucontext_t& context, bool on) {
    greg_t& flags = context.uc_mcontext.gregs[REG_EFL];
    flags = on ? flags | kTrapFlag : flags & ~kTrapFlag;
}

#elif defined(__aarch64__)

inline constexpr bool kSteps = false;

inline const void* instruction(const ucontext_t& context) {
    return reinterpret_cast<const void*>(context.uc_mcontext.pc);
}
// The kernel tells the cause of the fault in one of its records behind the registers. Without it, it was a write: a page
// that may be read is protected against nothing else, and any touch of one that may not is taken for what it is.
inline bool writes(const ucontext_t& context) {
    constexpr std::uint32_t kCause = 0x45535201;
    constexpr std::uint64_t kWrite = std::uint64_t{1} << 6U;
    struct Record {
        std::uint32_t magic, bytes;
    } record{};
    const auto* at = reinterpret_cast<const char*>(context.uc_mcontext.__reserved);
    const auto* const end = at + sizeof context.uc_mcontext.__reserved;
    for (; at + sizeof record + sizeof kWrite <= end; at += record.bytes) {
        std::memcpy(&record, at, sizeof record);
        if (record.magic == kCause) {
            std::uint64_t cause = 0;
            std::memcpy(&cause, at + sizeof record, sizeof cause);
            return (cause & kWrite) != 0;
        }
        if (record.magic == 0 || record.bytes == 0) {
            break;
        }
    }
    return true;
}
inline void step(ucontext_t&, bool) {}

#endif

}  // namespace hostrace::machine
