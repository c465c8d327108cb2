#include "hostrace/left_behind.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>
#include <cstdlib>

#include <array>
#include <cstring>
#include <string_view>

#include "hostrace/errno_kept.h"
#include "hostrace/libc.h"
#include "hostrace/report.h"
#include "hostrace/text.h"
#include "hostrace/watcher.h"

namespace hostrace {
namespace {

// As they were at the start: a program that empties its environment, as `env -i` does, empties its own first.
std::array<char, 4096> folder;
int command_parent = 0;  // the parent of the command that hostrace was given
// Ours. Asked for later it would take the dynamic linker's lock, which a thread may have had when the process was forked.
std::string_view library;

[[gnu::constructor]] void remember() {
    Dl_info ours{};
    library = dladdr(folder.data(), &ours) == 0 ? "" : ours.dli_fname;
    const char* const given = getenv("HOSTRACE_DIR");
    const char* const parent = getenv("HOSTRACE_PID");
    const std::string_view name = given == nullptr ? "" : given;
    if (name.size() < folder.size()) {
        name.copy(folder.data(), name.size());
        command_parent = parent == nullptr ? 0 : static_cast<int>(strtol(parent, nullptr, 10));
    }
}

bool loads_us(std::string_view variable) {
    return (variable.starts_with("LD_PRELOAD=") || variable.starts_with("CUDA_INJECTION64_PATH=")) &&
           variable.find(library) != std::string_view::npos;
}

// A search along PATH tries many that are not there.
bool is_there(const char* program) {
    if (program == nullptr || std::strchr(program, '/') == nullptr) {
        return true;
    }
    const int file = libc::open(program, O_PATH | O_CLOEXEC);
    return file >= 0 && libc::close(file) == 0;
}

}  // namespace

void say_if_left_behind(const char* program, const char* const* environment) {
    if (folder[0] == 0 || why_nothing_is_protected() != nullptr) {
        return;
    }
    for (const char* const* each = environment; each != nullptr && *each != nullptr; ++each) {
        if (loads_us(*each)) {
            return;
        }
    }
    const ErrnoKept of_the_program;
    if (is_there(program)) {
        // In the place of the command itself: then there is nothing else to watch, as far as that goes, unless the command
        // has used CUDA before.
        const bool alone = getppid() == command_parent && watcher() == nullptr;
        const char* const how = alone ? "refused: " : "not watched: ";
        std::array<char, 512> room;
        Text text(room.data(), room.size() - 1);
        text << how << (program == nullptr ? "a program" : program)
             << " was started without LD_PRELOAD and CUDA_INJECTION64_PATH (by env -i, perhaps)";
        room[text.size()] = 0;
        Report::say_unwatched(folder.data(), room.data());
    }
}

}  // namespace hostrace
