// What the kernel says about the process's memory: its own parts, each with its rights.
#pragma once

#include <fcntl.h>
#include <cstdint>
#include <cstdlib>

#include <array>
#include <span>

#include "hostrace/libc.h"
#include "hostrace/use.h"

namespace hostrace {

struct Mapped : Span {
    const char* rights;  // "rw-p" and all that stands behind it in its line
};

// For each part, lowest first. A stream of the C library would ask the program's allocator for a buffer. False where
// nobody can tell: the program may open no more files, or has left /proc behind (chroot).
template <typename Look>
bool each_mapped(Look look) {
    const int maps = libc::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (maps < 0) {
        return false;
    }
    std::array<char, 512> line{};
    std::size_t used = 0;
    std::array<char, 4096> some;
    for (ssize_t got = 0; (got = libc::read(maps, some.data(), some.size())) > 0;) {
        for (const char each : std::span(some.data(), static_cast<std::size_t>(got))) {
            if (each != '\n') {
                line[used] = each;
                used += used + 1 < line.size() ? 1 : 0;
                continue;
            }
            line[used] = '\0';
            used = 0;
            char* rest = nullptr;
            const std::uintptr_t begin = std::strtoull(line.data(), &rest, 16);
            const std::uintptr_t end = std::strtoull(rest + 1, &rest, 16);
            look(Mapped{{begin, end}, rest + 1});
        }
    }
    libc::close(maps);
    return true;
}

}  // namespace hostrace
