// Programs that ask the C library itself for one of its functions (ctypes.CDLL("libc.so.6"), P/Invoke, JNA) get ours where
// we have one: what the dynamic linker binds to us for a program has to come to us this way, too.
#include <dlfcn.h>

#include <atomic>

#include "hostrace/before.h"
#include "hostrace/errno_kept.h"
#include "hostrace/faults.h"
#include "hostrace/interpose.h"
#include "hostrace/libc.h"
#include "hostrace/lookups.h"
#include "hostrace/raw_calls.h"
#include "hostrace/watcher.h"

namespace hostrace {
namespace {

HOSTRACE_NEXT(dlopen);

std::atomic<void*> ours{nullptr};
std::atomic<bool> bound{false};  // some library, past us

bool is_code_of_ours(const void* place) {
    Dl_info here{};
    Dl_info there{};
    return dladdr(reinterpret_cast<const void*>(&is_code_of_ours), &here) != 0 && dladdr(place, &there) != 0 &&
           here.dli_fbase == there.dli_fbase;
}

// Where the next function behind ours is another one, somebody stands between who may ask for what he calls.
void* found_for_program(void* library, const char* name) {
    const libc::Lookup lookup = libc::linkers_lookup();
    void* const found = lookup(library, name);
    void* const own = ours.load(std::memory_order_relaxed);
    if (found == nullptr || own == nullptr || library == own || found != lookup(RTLD_NEXT, name)) {
        return found;
    }
    void* const in_front = lookup(own, name);
    dlerror();  // what is missing among ours is no error of the program's
    return in_front != nullptr && is_code_of_ours(in_front) ? in_front : found;
}

[[gnu::constructor]] void find_ourselves() {
    Dl_info here{};
    if (dladdr(reinterpret_cast<const void*>(&is_code_of_ours), &here) != 0) {
        ours.store(dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD));
    }
}

}  // namespace

bool calls_are_bound_past_us() { return bound.load(std::memory_order_acquire); }

}  // namespace hostrace

// A library that is opened so is bound to what it needs itself, the C library among that, before whatever is preloaded:
// it calls the kernel, sets masks and handlers, and nobody tells us.
extern "C" [[gnu::used]] void* hostrace_before_dlopen(const char* /*file*/, long flags) {
    if ((flags & RTLD_DEEPBIND) != 0 && (flags & RTLD_NOLOAD) == 0) {
        const hostrace::ErrnoKept of_the_program;
        hostrace::bound.store(true, std::memory_order_release);
        hostrace::stop_protecting(
            "the program opens a library that is bound past us (RTLD_DEEPBIND): no page is protected, and only changes "
            "of what copies read are seen");
        hostrace::masks_change_unseen();
        hostrace::let_raw_calls_through();
    }
    return hostrace::next_dlopen.find();
}
HOSTRACE_BEFORE(dlopen, hostrace_before_dlopen);

// Whom the linker asks next depends on who asks: it has to find the program's own place there.
extern "C" [[gnu::used]] void* hostrace_before_dlsym(void* library, const char*) {
    return library == RTLD_NEXT || library == RTLD_DEFAULT ? reinterpret_cast<void*>(hostrace::libc::linkers_lookup())
                                                           : reinterpret_cast<void*>(&hostrace::found_for_program);
}
HOSTRACE_BEFORE(dlsym, hostrace_before_dlsym);
