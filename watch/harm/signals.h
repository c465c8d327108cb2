// What the programs about signals have in common.
#pragma once

#include <sys/mman.h>
#include <unistd.h>
#include <csignal>

#include <cstdio>

#include "programs.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace harm {

inline char* own_page = nullptr;
inline int handled = 0;

// The program's own fault, which it mends: it protects a page, and opens it in its handler.
[[gnu::optimize("non-call-exceptions")]] inline void fault() {
    if (own_page == nullptr) {
        own_page = mapped(kPage, PROT_NONE);
    }
    mprotect(own_page, kPage, PROT_NONE);
    *static_cast<volatile char*>(own_page) = 1;
}
inline void mend(int) {
    ++handled;
    mprotect(own_page, kPage, PROT_READ | PROT_WRITE);
}
inline void touch(Pinned& pinned) {
    for (int at = 0; at < 3; ++at) {
        static_cast<volatile char*>(pinned.page)[at] = 1;
    }
}
inline const char* name_of(sighandler_t handler) {
    return handler == mend       ? "mend"
           : handler == SIG_DFL  ? "default"
           : handler == SIG_IGN  ? "ignored"
           : handler == SIG_ERR  ? "error"
           : handler == SIG_HOLD ? "held"
                                 : "another";
}
inline void say_mask(const char* what) {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    std::printf("%s:", what);
    for (const int signal : {SIGSEGV, SIGTRAP, SIGSYS, SIGUSR1}) {
        std::printf(" %d", sigismember(&mask, signal));
    }
    std::printf("\n");
}
inline void say_action(int signal) {
    struct sigaction now{};
    sigaction(signal, nullptr, &now);
    std::printf("%d: %s restarts %d once %d defers %d\n", signal, name_of(now.sa_handler),
                (now.sa_flags & SA_RESTART) != 0, (now.sa_flags & SA_RESETHAND) != 0, (now.sa_flags & SA_NODEFER) == 0);
}

}  // namespace harm
