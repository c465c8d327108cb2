// The signal handlers: SIGSEGV for a touch of a protected page, SIGTRAP behind an instruction that was stepped over.
// Other handlers of the program keep working: they are called for whatever is not ours.
#pragma once

#include <ucontext.h>
#include <csignal>

#include "hostrace/guard.h"

namespace hostrace {

class ProcessPages final : public Pages {
  public:
    bool protect(std::uintptr_t begin, std::size_t bytes, Protection protection) override;
    std::vector<Span> with_other_rights(Span span) override;
};

// False where this machine's signals cannot be handled. Without `can_step` a page stays open behind a neighbour's
// touch.
bool install_handlers(bool can_step);

// As the kernel keeps it.
struct KernelAction {
    void* handler;
    unsigned long flags;
    void* restorer;
    std::uint64_t mask;
};
inline constexpr unsigned long kRestorer = 0x04000000;  // SA_RESTORER, for which older headers have no name

// A handler of the program finds the mask that it would find without us, and what it leaves there is taken up.
void tell_blocked(ucontext_t& context);
void take_blocked(ucontext_t& context);

// Somebody sent a signal to a thread that steps over an instruction: it comes again behind that.
bool sent_in_a_step(const siginfo_t& info);

// A handler of the program runs in the middle of an instruction that is stepped over, because that made a fault of
// another kind, too: it may not come back, so the page is closed first, and the mask is the program's again.
void leave_step(int signal, ucontext_t& context);

// Somebody sent a signal that has interrupted a handler of ours: only there are signals of ours blocked. A handler of the
// program would find our mask, and may jump away.
bool sent_to_ours(const siginfo_t& info, const ucontext_t& context);
// It stays blocked where the handler returns to, and comes when that has returned as well.
bool come_again(int signal, siginfo_t& info, ucontext_t& context);

// The signal comes to us from now on. What the program had for it is kept.
bool take_signal(int signal, const struct sigaction& action);
// It comes to the program from now on, as do all of them.
void give_signals_back();
// The program changes masks where we cannot see it, as Go does: its threads begin with all blocked, and open their masks
// by calls of their own. From now on none of our signals counts as blocked by the program.
void masks_change_unseen();
// The program's own handler, or the end that the kernel would have made.
void chain(int signal, siginfo_t* info, void* context);
// The program has left a handler of its own, or is about to.
void handler_is_left();
// What was sent while the program had it blocked, and is so no longer, comes again.
void send_what_waited();
// One of the signals in the set that wait so, or 0: the program takes it.
int take_what_waits(std::uint64_t set, siginfo_t* info);
// What the program sees of our signals: as if our handlers were not there.
int program_sigaction(int signal, const struct sigaction* action, struct sigaction* before);
bool is_ours(int signal);
// What the kernel has for a signal, as the program set it.
void as_the_program_set(int signal, struct sigaction& action);
// The C library's own, behind the one that stands in front of it.
int libc_sigaction(int signal, const struct sigaction* action, struct sigaction* before);

}  // namespace hostrace
