#include "hostrace/memory_calls.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#include "hostrace/errno_kept.h"
#include "hostrace/interpose.h"
#include "hostrace/settled.h"
#include "hostrace/watcher.h"

namespace hostrace {
namespace {

Span span_of(const std::array<long, 6>& arguments, std::size_t at) {
    const auto begin = static_cast<std::uintptr_t>(arguments[at]);
    const std::uintptr_t room = ~begin - kPageSize;
    return pages_around({begin, begin + std::min(static_cast<std::uintptr_t>(arguments[at + 1]), room)});
}

bool is_pinned(const Watcher& watch, Span span) { return !span.empty() && watch.ranges.meet(span); }

// What is there now is other memory, or none.
void replace(Watcher& watch, Span span) {
    if (is_pinned(watch, span)) {
        watch.digests.forget(span);
        leave_alone(watch, span);
    }
}

void protect(Watcher& watch, Span span, long protection) {
    if (protection != (PROT_READ | PROT_WRITE)) {
        leave_alone(watch, span);
    } else if (is_pinned(watch, span)) {
        watch.guard.forget(span);
        watch.left_alone.remove(span);
    }
}

Opening made_of(Watcher& watch, Span span) {
    return is_pinned(watch, span) && !watch.guard.idle() ? watch.guard.open_for_now(span) : Opening{};
}

}  // namespace

MemoryCall::MemoryCall(long number, const std::array<long, 6>& arguments) {
    Watcher* watch = watcher();
    if (watch == nullptr || watch->guard.locked_by_me()) {
        return;  // ours, or of a handler that interrupted us at our books
    }
    const ErrnoKept of_the_program;
    switch (number) {
        case SYS_mprotect:
        case SYS_pkey_mprotect:
            protect(*watch, span_of(arguments, 0), arguments[2]);
            break;
        case SYS_munmap:
        case SYS_remap_file_pages:
            replace(*watch, span_of(arguments, 0));
            break;
        case SYS_shmdt:
            replace(*watch, Span{watch->ranges.find(static_cast<std::uintptr_t>(arguments[0]))});
            break;
        case SYS_mmap:
            if ((arguments[3] & MAP_FIXED) != 0) {
                replace(*watch, span_of(arguments, 0));
            }
            break;
        case SYS_mremap:
            // Of no bytes, it maps the same memory a second time, as it is protected now.
            replace(*watch, span_of({arguments[0], arguments[arguments[1] == 0 ? 2 : 1]}, 0));
            if ((arguments[3] & MREMAP_FIXED) != 0) {
                replace(*watch, span_of({arguments[4], arguments[2]}, 0));
            }
            break;
        case SYS_madvise:
        case SYS_mlock:
        case SYS_mlock2:
        case SYS_msync:
            opening_ = made_of(*watch, span_of(arguments, 0));
            break;
        default:
            break;
    }
}

MemoryCall::~MemoryCall() {
    Watcher* watch = opening_.empty() ? nullptr : watcher();
    if (watch != nullptr) {
        const ErrnoKept of_the_call;
        watch->guard.close(opening_);
    }
}

}  // namespace hostrace

using namespace hostrace;

#define HOSTRACE_MEMORY(name, number)                                                              \
    HOSTRACE_EXPORT long memory_##name(long, long, long, long, long, long) __asm__(#name);         \
    long memory_##name(long a, long b, long c, long d, long e, long f) {                           \
        HOSTRACE_FOUND_AT_START static Next<long(long, long, long, long, long, long)> next(#name); \
        const MemoryCall memory(number, {a, b, c, d, e, f});                                       \
        return next(a, b, c, d, e, f);                                                             \
    }
HOSTRACE_MEMORY(mprotect, SYS_mprotect)
HOSTRACE_MEMORY(pkey_mprotect, SYS_pkey_mprotect)
HOSTRACE_MEMORY(munmap, SYS_munmap)
HOSTRACE_MEMORY(mremap, SYS_mremap)
HOSTRACE_MEMORY(mmap, SYS_mmap)
HOSTRACE_MEMORY(mmap64, SYS_mmap)
HOSTRACE_MEMORY(remap_file_pages, SYS_remap_file_pages)
HOSTRACE_MEMORY(shmdt, SYS_shmdt)
HOSTRACE_MEMORY(madvise, SYS_madvise)
HOSTRACE_MEMORY(posix_madvise, SYS_madvise)
HOSTRACE_MEMORY(mlock, SYS_mlock)
HOSTRACE_MEMORY(mlock2, SYS_mlock2)
HOSTRACE_MEMORY(msync, SYS_msync)
