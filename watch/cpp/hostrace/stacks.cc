#include "hostrace/stacks.h"

#include <dlfcn.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "hostrace/interpose.h"
#include "hostrace/libc.h"
#include "hostrace/thread.h"

namespace hostrace {
namespace {

constexpr std::size_t kPrintedMax = 16384;

// The dynamic linker knows the program by what it was called, which need be no path.
struct Executable {
    void* base = nullptr;
    std::array<char, 4096> path{};

    void find() {
        Dl_info info{};
        if (dladdr(reinterpret_cast<void*>(getauxval(AT_PHDR)), &info) != 0 &&
            readlink("/proc/self/exe", path.data(), path.size() - 1) > 0) {
            base = info.dli_fbase;
        }
    }
};
Executable executable;

}  // namespace

void native_frames(Frames& frames, const void* from) {
    std::array<void*, kFramesMax + 8> found;
    void* const* const end = found.data() + libc::backtrace(found.data(), static_cast<int>(found.size()));
    void* const* begin = std::find(found.data(), const_cast<void**>(end), from);
    begin = begin == end ? found.data() : begin;
    const std::size_t kept = std::min(static_cast<std::size_t>(end - begin), kFramesMax);
    std::copy_n(begin, kept, frames.begin());
    frames[kept] = nullptr;
}

// Module, offset in it and symbol of each; frames of our own are nobody's business.
void print_native(Text& text, void* const* frames) {
    Dl_info ours{};
    dladdr(reinterpret_cast<void*>(&print_native), &ours);
    text.name("native") << "[";
    for (bool fits = true; fits && frames != nullptr && *frames != nullptr; ++frames) {
        Dl_info info{};
        const bool known = dladdr(*frames, &info) != 0 && info.dli_fname != nullptr;
        if (known && info.dli_fbase == ours.dli_fbase) {
            continue;
        }
        const char* const file = !known                              ? "?"
                                 : info.dli_fbase == executable.base ? executable.path.data()
                                                                     : info.dli_fname;
        const auto base = known ? reinterpret_cast<std::uintptr_t>(info.dli_fbase) : 0;
        fits = text.whole([&] {
            text.item() << "[";
            text.quoted(file) << "," << reinterpret_cast<std::uintptr_t>(*frames) - base << ",";
            text.quoted(known && info.dli_sname != nullptr ? info.dli_sname : "") << "]";
        });
    }
    text << "]";
}

void Stacks::start() {
    python.find();
    executable.find();
    void* texts = mmap(nullptr, kTextBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    texts_ = texts == MAP_FAILED ? nullptr : static_cast<char*>(texts);
    Frames frames;
    native_frames(frames);  // loads the unwinder now, and not in a signal handler
}

std::uint32_t Stacks::take() {
    void* state = python.state();
    std::uint64_t place = python.place(state);
    Frames frames;
    frames[0] = nullptr;
    if (place == 0) {
        native_frames(frames);
        for (void* const* frame = frames.data(); *frame != nullptr; ++frame) {
            place = mixed(place, reinterpret_cast<std::uintptr_t>(*frame));
        }
    }
    place |= 1;
    if (texts_ == nullptr || !lock_.lock_unless_mine()) {
        return 0;
    }
    std::size_t at = place % kStacksMax;
    while (entries_[at].place != 0 && entries_[at].place != place) {
        at = (at + 1) % kStacksMax;
    }
    const bool known = entries_[at].place == place;
    const bool room = count_ < kStacksMax / 2 && used_ + kPrintedMax < kTextBytes;
    if (!known && room) {
        Text text(texts_ + used_, kPrintedMax - 1);
        python.print(state, text);
        texts_[used_ + text.size()] = '\0';
        if (frames[0] == nullptr) {
            native_frames(frames);
        }
        entries_[at] = {place, static_cast<std::uint32_t>(used_), frames};
        used_ += text.size() + 1;
        ++count_;
    }
    lock_.unlock();
    return known || room ? static_cast<std::uint32_t>(at + 1) : 0;
}

void Stacks::print(std::uint32_t stack, Text& text) const {
    const Entry* entry = stack == 0 ? nullptr : &entries_[stack - 1];
    (text << "{").name("python") << "[" << (entry == nullptr ? "" : texts_ + entry->python) << "]";
    print_native(text, entry == nullptr ? nullptr : entry->native.data());
    text << "}";
}

void Stacks::print_here(Text& text, void* const* frames) const {
    void* state = python.state();
    text << "{";
    if (lock_.lock_unless_mine()) {
        if (state == nullptr && self().parent_python != nullptr &&
            to_linux(SYS_tgkill, getpid(), self().parent, 0) == 0) {
            text.name("started_by") << static_cast<std::uint64_t>(self().parent);
            state = self().parent_python;
        }
        text.name("python") << "[";
        python.print(state, text);
        text << "]";
        lock_.unlock();
    }
    print_native(text, frames);
    text << "}";
}

std::uint64_t Stacks::place_here(const void* instruction) const {
    void* state = python.state();
    return mixed(python.place(state == nullptr ? self().parent_python : state),
                 reinterpret_cast<std::uintptr_t>(instruction));
}

}  // namespace hostrace
