#include "watch/stacks.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <sys/mman.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "watch/thread.h"

namespace kvfix::watch {
namespace {

constexpr std::size_t kPrintedMax = 16384;
}  // namespace

void native_frames(Frames& frames, int skip) {
    std::array<void*, kFramesMax + 8> found;
    const int count = backtrace(found.data(), static_cast<int>(found.size()));
    std::size_t kept = 0;
    for (int at = skip; at < count && kept < kFramesMax; ++at) {
        frames[kept++] = found[static_cast<std::size_t>(at)];
    }
    frames[kept] = nullptr;
}

void print_native(Text& text, void* const* frames) {
    Dl_info ours{};
    dladdr(reinterpret_cast<void*>(&print_native), &ours);
    for (; frames != nullptr && *frames != nullptr; ++frames) {
        Dl_info info{};
        if (dladdr(*frames, &info) == 0 || info.dli_fname == nullptr) {
            (text << "  ? ").hex(reinterpret_cast<std::uintptr_t>(*frames)) << "\n";
            continue;
        }
        if (info.dli_fbase == ours.dli_fbase) {
            continue;
        }
        const auto offset =
            reinterpret_cast<std::uintptr_t>(*frames) - reinterpret_cast<std::uintptr_t>(info.dli_fbase);
        (text << "  " << info.dli_fname << " ").hex(offset)
            << " " << (info.dli_sname == nullptr ? "" : info.dli_sname) << "\n";
    }
}

void Stacks::start() {
    python.find();
    void* texts = mmap(nullptr, kTextBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    texts_ = texts == MAP_FAILED ? nullptr : static_cast<char*>(texts);
    Frames frames;
    native_frames(frames, 0);  // loads the unwinder now, and not in a signal handler
}

std::uint32_t Stacks::take() {
    void* state = python.state();
    std::uint64_t place = python.place(state);
    Frames frames;
    frames[0] = nullptr;
    if (place == 0) {
        native_frames(frames, 2);
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
            native_frames(frames, 2);
        }
        entries_[at] = {place, static_cast<std::uint32_t>(used_), frames};
        used_ += text.size() + 1;
        ++count_;
    }
    lock_.unlock();
    return known || room ? static_cast<std::uint32_t>(at + 1) : 0;
}

void Stacks::print(std::uint32_t stack, Text& text) const {
    if (stack != 0) {
        const Entry& entry = entries_[stack - 1];
        text << texts_ + entry.python << "native\n";
        print_native(text, entry.native.data());
    }
}

void Stacks::print_here(Text& text, void* const* frames) const {
    void* state = python.state();
    if (lock_.lock_unless_mine()) {
        if (state != nullptr) {
            python.print(state, text);
        } else if (self().parent_python != nullptr && tgkill(getpid(), self().parent, 0) == 0) {
            text << "started by thread " << static_cast<std::uint64_t>(self().parent) << "\n";
            python.print(self().parent_python, text);
        }
        lock_.unlock();
    }
    text << "native\n";
    print_native(text, frames);
}

std::uint64_t Stacks::place_here(const void* instruction) const {
    void* state = python.state();
    return mixed(python.place(state == nullptr ? self().parent_python : state),
                 reinterpret_cast<std::uintptr_t>(instruction));
}

}  // namespace kvfix::watch
