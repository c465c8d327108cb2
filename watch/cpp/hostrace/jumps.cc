// Jumps and changes of context: the C library sets signal masks for them by calls of its own into the kernel. What the
// program blocks of our signals is no part of the kernel's mask, so it is kept beside the mask that is saved, and taken
// up again with it. Functions that return twice can only be told about before they run: theirs are jumped to.
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <csetjmp>
#include <csignal>

#include <cstring>

#include "hostrace/before.h"
#include "hostrace/faults.h"
#include "hostrace/interpose.h"
#include "hostrace/machine.h"
#include "hostrace/memory_calls.h"
#include "hostrace/thread.h"
#include "hostrace/watcher.h"

namespace hostrace {
namespace {

HOSTRACE_NEXT(getcontext);
HOSTRACE_NEXT(setcontext);
HOSTRACE_NEXT(swapcontext);
HOSTRACE_FOUND_AT_START Next<void(__jmp_buf_tag*, int)> next_longjmp("longjmp");
HOSTRACE_FOUND_AT_START Next<void(__jmp_buf_tag*, int)> next_longjmp_chk("__longjmp_chk");
HOSTRACE_FOUND_AT_START Next<int(__jmp_buf_tag*, int)> next_sigsetjmp("__sigsetjmp");
HOSTRACE_FOUND_AT_START Next<int(__jmp_buf_tag*)> next_setjmp("setjmp");

// The last words of a mask: the kernel uses the first one alone.
constexpr std::size_t kWords = sizeof(sigset_t) / sizeof(std::uint64_t);
constexpr std::uint64_t kOurs64 = 0x686f7374'00000000;  // what is kept is ours, and not what lay there

struct Words {
    std::uint64_t words[kWords];

    std::uint64_t& mask() { return words[0]; }
    std::uint64_t& mask_then() { return words[kWords - 2]; }
    std::uint64_t& kept() { return words[kWords - 1]; }
    bool keeps() const { return (words[kWords - 1] & ~kOurSignals) == kOurs64; }
};
static_assert(sizeof(Words) == sizeof(sigset_t));

Words& words_of(sigset_t& mask) { return reinterpret_cast<Words&>(mask); }

void take_up(std::uint64_t blocked) {
    handler_is_left();
    self().blocked = blocked;
    send_what_waited();
}

[[noreturn]] void jump(Next<void(__jmp_buf_tag*, int)>& next, __jmp_buf_tag* to, int value) {
    if (to->__mask_was_saved != 0) {
        const Words& mask = words_of(to->__saved_mask);
        take_up(mask.keeps() ? mask.words[kWords - 1] & kOurSignals : 0);
    } else {
        handler_is_left();
    }
    leave_calls();  // a handler has interrupted one, perhaps: what was open for it would stay so
    next(to, value);
    __builtin_unreachable();
}

// The C library has the kernel save and read the mask in there, behind us.
template <typename T>
void leave_alone(const T& place) {
    hostrace::leave_alone(&place, sizeof place);
}

void keep_for(ucontext_t& context) {
    leave_alone(context);
    Words& mask = words_of(context.uc_sigmask);
    mask.kept() = kOurs64 | self().blocked;
    to_linux(SYS_rt_sigprocmask, SIG_BLOCK, nullptr, &mask.mask_then(), sizeof mask.mask());
}

// No handler of ours could start on a stack that is protected.
void leave_stack_alone(const ucontext_t& context) {
    const auto begin = reinterpret_cast<std::uintptr_t>(context.uc_stack.ss_sp);
    if (machine::stack_pointer(context) - begin <= context.uc_stack.ss_size) {  // else nobody has set it
        hostrace::leave_alone(context.uc_stack.ss_sp, context.uc_stack.ss_size);
    }
}

// The program may have changed the mask since it was saved, and may have added ours to it.
void go_to(ucontext_t& context) {
    leave_alone(context);
    leave_stack_alone(context);
    Words& mask = words_of(context.uc_sigmask);
    std::uint64_t blocked = mask.mask() & kOurSignals;
    const bool keeps = mask.keeps();
    if (keeps && mask.mask() == mask.mask_then()) {
        blocked |= mask.kept() & kOurSignals;
    }
    if ((mask.mask() & kOurSignals) != 0) {
        mask.mask() &= ~kOurSignals;
        if (keeps) {
            mask.mask_then() = mask.mask();
            mask.kept() = kOurs64 | blocked;
        }
    }
    take_up(blocked);
}

}  // namespace
}  // namespace hostrace

using namespace hostrace;

#define HOSTRACE_JUMP(name, next)                                                                   \
    HOSTRACE_EXPORT __attribute__((noreturn)) void jump_##name(__jmp_buf_tag*, int) __asm__(#name); \
    void jump_##name(__jmp_buf_tag* to, int value) { jump(next, to, value); }
HOSTRACE_JUMP(longjmp, next_longjmp)
HOSTRACE_JUMP(_longjmp, next_longjmp)
HOSTRACE_JUMP(siglongjmp, next_longjmp)
HOSTRACE_JUMP(__longjmp_chk, next_longjmp_chk)

extern "C" {

[[gnu::used]] void* hostrace_before_sigsetjmp(__jmp_buf_tag* from, int with_mask) {
    if (with_mask != 0) {
        leave_alone(*from);
        words_of(from->__saved_mask).kept() = kOurs64 | self().blocked;
    }
    return next_sigsetjmp.find();
}
[[gnu::used]] void* hostrace_before_setjmp(__jmp_buf_tag* from) {
    leave_alone(*from);
    words_of(from->__saved_mask).kept() = kOurs64 | self().blocked;
    return next_setjmp.find();
}
[[gnu::used]] void* hostrace_before_getcontext(ucontext_t* from) {
    keep_for(*from);
    return next_getcontext.find();
}
[[gnu::used]] void* hostrace_before_setcontext(ucontext_t* to) {
    go_to(*to);
    return next_setcontext.find();
}
[[gnu::used]] void* hostrace_before_swapcontext(ucontext_t* from, ucontext_t* to) {
    keep_for(*from);
    go_to(*to);
    return next_swapcontext.find();
}
}
HOSTRACE_BEFORE(__sigsetjmp, hostrace_before_sigsetjmp);
HOSTRACE_BEFORE(setjmp, hostrace_before_setjmp);
HOSTRACE_BEFORE(getcontext, hostrace_before_getcontext);
HOSTRACE_BEFORE(setcontext, hostrace_before_setcontext);
HOSTRACE_BEFORE(swapcontext, hostrace_before_swapcontext);
