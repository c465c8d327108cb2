// The C library's own functions, behind those that the library puts in front of them.
#pragma once

#include <csignal>

namespace kvfix::watch::libc {

int sigaction_(int signal, const struct sigaction* action, struct sigaction* before);

}  // namespace kvfix::watch::libc
