#include "watch/stacks.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "watch/thread.h"

namespace kvfix::watch {
namespace {

constexpr std::size_t kPrintedMax = 16384;
constexpr int kPythonFramesMax = 64;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15U;
    return hash ^ (hash >> 29);
}

template <typename T>
T read_at(const void* base, std::size_t offset) {
    T value;
    std::memcpy(static_cast<void*>(&value), static_cast<const char*>(base) + offset, sizeof value);
    return value;
}

}  // namespace

Text& Text::bytes(const char* text, std::size_t count) {
    count = std::min(count, size_ - used_);
    std::memcpy(begin_ + used_, text, count);
    used_ += count;
    return *this;
}

Text& Text::operator<<(const char* text) { return bytes(text, std::strlen(text)); }

Text& Text::operator<<(std::uint64_t number) {
    std::array<char, 20> digits;
    std::size_t at = digits.size();
    do {
        digits[--at] = static_cast<char>('0' + number % 10);
        number /= 10;
    } while (number != 0);
    return bytes(digits.data() + at, digits.size() - at);
}

Text& Text::hex(std::uint64_t number) {
    std::array<char, 16> digits;
    std::size_t at = digits.size();
    do {
        digits[--at] = "0123456789abcdef"[number % 16];
        number /= 16;
    } while (number != 0);
    *this << "0x";
    return bytes(digits.data() + at, digits.size() - at);
}

// Where the interpreter keeps what a thread executes: read out of its own thread's state, so nothing moves meanwhile.
void Python::find() {
    static constexpr std::array kLayouts{
        Layout{311, true, 8, 32, 48, 56},
        Layout{312, true, 0, 0, 8, 56},
        Layout{313, false, 72, 0, 8, 56},
    };
    thread_state_ = reinterpret_cast<void* (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState"));
    const auto version = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "Py_GetVersion"));
    if (thread_state_ == nullptr || version == nullptr) {
        thread_state_ = nullptr;
        return;
    }
    dump_ = reinterpret_cast<void (*)(int, void*)>(dlsym(RTLD_DEFAULT, "_Py_DumpTraceback"));
    char* minor = nullptr;
    const long major = std::strtol(version(), &minor, 10);
    const long number = major * 100 + std::strtol(minor + 1, nullptr, 10);
    for (const Layout& layout : kLayouts) {
        if (layout.version == number) {
            layout_ = &layout;
        }
    }
    scratch_ = static_cast<int>(syscall(SYS_memfd_create, "kvfix_watch", 1U /* close on exec */));
}

std::uint64_t Python::place(void* state) const {
    if (layout_ == nullptr || state == nullptr) {
        return 0;
    }
    constexpr std::size_t kCframe = 56;  // in the thread's state, of the versions that have one
    const void* holder = layout_->through_cframe ? read_at<const void*>(state, kCframe) : state;
    const void* frame = holder == nullptr ? nullptr : read_at<const void*>(holder, layout_->current);
    std::uint64_t hash = 1;
    for (int depth = 0; frame != nullptr && depth < kPythonFramesMax; ++depth) {
        hash = mixed(hash, read_at<std::uint64_t>(frame, layout_->code));
        hash = mixed(hash, read_at<std::uint64_t>(frame, layout_->instruction));
        frame = read_at<const void*>(frame, layout_->previous);
    }
    return hash;
}

void Python::print(void* state, Text& text) const {
    if (state == nullptr || dump_ == nullptr || scratch_ < 0) {
        return;
    }
    if (ftruncate(scratch_, 0) != 0 || lseek(scratch_, 0, SEEK_SET) != 0) {
        return;
    }
    dump_(scratch_, state);
    std::array<char, 512> part;
    bool in_header = true;
    off_t at = 0;
    for (ssize_t got = 0; (got = pread(scratch_, part.data(), part.size(), at)) > 0; at += got) {
        const char* from = part.data();
        const char* end = from + got;
        if (in_header) {  // the first line names the order of the frames, which the report's reader knows
            const void* line = std::memchr(from, '\n', static_cast<std::size_t>(got));
            if (line == nullptr) {
                continue;
            }
            from = static_cast<const char*>(line) + 1;
            in_header = false;
        }
        text.bytes(from, static_cast<std::size_t>(end - from));
    }
}

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
