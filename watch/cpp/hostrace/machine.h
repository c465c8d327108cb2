// What a signal's context says on each machine: which instruction faulted, and how. Stepping over one instruction takes
// the processor's trap flag; aarch64 has none that a program may set.
#pragma once

#include <linux/audit.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace hostrace::machine {

// Older headers have no name for it: PR_SET_SYSCALL_USER_DISPATCH of prctl.
inline constexpr int kDispatch = 59;

#if defined(__x86_64__)

inline constexpr bool kSteps = true;
inline constexpr std::uint32_t kAudit = AUDIT_ARCH_X86_64;
inline constexpr greg_t kTrapFlag = 0x100;
inline constexpr greg_t kWriteFault = 2;

inline const void* instruction(const ucontext_t& context) {
    return reinterpret_cast<const void*>(context.uc_mcontext.gregs[REG_RIP]);
}
inline std::uintptr_t stack_pointer(const ucontext_t& context) {
    return static_cast<std::uintptr_t>(context.uc_mcontext.gregs[REG_RSP]);
}
inline bool writes(const ucontext_t& context) { return (context.uc_mcontext.gregs[REG_ERR] & kWriteFault) != 0; }
inline void step(ucontext_t& context, bool on) {
    greg_t& flags = context.uc_mcontext.gregs[REG_EFL];
    flags = on ? flags | kTrapFlag : flags & ~kTrapFlag;
}

// The call that the kernel did not make, and handed over instead.
inline constexpr bool kTellsCalls = true;
inline constexpr std::array kCallsWithTheirPlace{SYS_clone, SYS_clone3,       SYS_fork,
                                                 SYS_vfork, SYS_rt_sigreturn, SYS_sigaltstack};
inline std::array<long, 6> call_arguments(const ucontext_t& context) {
    const auto& of = context.uc_mcontext.gregs;
    return {of[REG_RDI], of[REG_RSI], of[REG_RDX], of[REG_R10], of[REG_R8], of[REG_R9]};
}
inline void answer_call(ucontext_t& context, long result) { context.uc_mcontext.gregs[REG_RAX] = result; }
// The two bytes of the instruction that made it come again.
inline void make_call_again(ucontext_t& context, int number) {
    context.uc_mcontext.gregs[REG_RIP] -= 2;
    context.uc_mcontext.gregs[REG_RAX] = number;
}

#elif defined(__aarch64__)

inline constexpr bool kSteps = false;
inline constexpr std::uint32_t kAudit = AUDIT_ARCH_AARCH64;
inline constexpr bool kTellsCalls = false;
inline constexpr std::array<int, 0> kCallsWithTheirPlace{};
inline std::array<long, 6> call_arguments(const ucontext_t&) { return {}; }
inline void answer_call(ucontext_t&, long) {}
inline void make_call_again(ucontext_t&, int) {}

inline const void* instruction(const ucontext_t& context) {
    return reinterpret_cast<const void*>(context.uc_mcontext.pc);
}
inline std::uintptr_t stack_pointer(const ucontext_t& context) { return context.uc_mcontext.sp; }
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
