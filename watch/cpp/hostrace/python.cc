#include "hostrace/python.h"

#include <dlfcn.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

namespace hostrace {
namespace {

constexpr int kFramesMax = 64;
constexpr std::uint64_t kTableMax = 1 << 20;  // what is longer, in bytes or signs, is none
constexpr std::uint64_t kNameMax = 1 << 12;
constexpr std::size_t kType = 8;     // in an object
constexpr std::size_t kLength = 16;  // in bytes and str
constexpr std::size_t kBytes = 32;   // in bytes: what they hold
constexpr std::size_t kCframe = 56;  // in a thread's state, of 3.11 and 3.12
constexpr std::uint8_t kOwnedByC = 3;

// Frames of another thread may go while they are read: the kernel reads those, and says so where there is nothing.
[[gnu::tls_model("initial-exec")]] thread_local bool of_another_thread = false;

template <typename T>
T read_at(const void* base, std::size_t offset) {
    T value{};
    const char* from = static_cast<const char*>(base) + offset;
    if (of_another_thread) {
        iovec to{static_cast<void*>(&value), sizeof value};
        iovec there{const_cast<char*>(from), sizeof value};
        return process_vm_readv(getpid(), &to, 1, &there, 1, 0) == sizeof value ? value : T{};
    }
    std::memcpy(static_cast<void*>(&value), from, sizeof value);
    return value;
}

// A walk over the table of a code object that says which instructions belong to which line.
class Lines {
  public:
    Lines(const void* table, std::uint64_t first)
        : table_(table),
          end_(kBytes + std::min(read_at<std::uint64_t>(table, kLength), kTableMax)),
          line_(static_cast<std::int64_t>(first)) {}

    // 3.10: for each piece its bytes and by how much the line grows, -128 where it has none.
    std::uint64_t of_pairs(std::uint64_t offset) {
        for (std::uint64_t end = 0; at_ + 2 <= end_;) {
            end += next();
            const auto delta = static_cast<std::int8_t>(next());
            line_ += delta == -128 ? 0 : delta;
            if (offset < end) {
                return static_cast<std::uint64_t>(line_);
            }
        }
        return 0;
    }
    // From 3.11 on: a byte with the kind of a piece and its length in instructions; lines and columns follow by kind.
    std::uint64_t of_locations(std::uint64_t offset) {
        for (std::uint64_t end = 0; at_ < end_;) {
            const unsigned head = next();
            const unsigned kind = head >> 3 & 15;
            end += 2 * ((head & 7ULL) + 1);
            if (kind >= 10 && kind <= 12) {
                line_ += kind - 10;
            } else if (kind == 13 || kind == 14) {
                const std::uint64_t delta = number();
                const auto lines = static_cast<std::int64_t>(delta >> 1);
                line_ += (delta & 1) != 0 ? -lines : lines;
            }
            if (offset < end) {
                return static_cast<std::uint64_t>(line_);
            }
            while (at_ < end_ && (byte() & 0x80) == 0) {  // only the first byte of a piece has this bit
                ++at_;
            }
        }
        return 0;
    }

  private:
    unsigned byte() const { return read_at<std::uint8_t>(table_, at_); }
    unsigned next() {
        const unsigned value = byte();
        ++at_;
        return value;
    }
    std::uint64_t number() {
        std::uint64_t value = 0;
        for (unsigned shift = 0; at_ < end_ && shift < 60; shift += 6) {
            const unsigned part = next();
            value |= (part & 63ULL) << shift;
            if ((part & 64) == 0) {
                break;
            }
        }
        return value;
    }

    const void* table_;
    std::uint64_t at_ = kBytes;
    std::uint64_t end_;
    std::int64_t line_;
};

}  // namespace

// Where each version keeps what is read here: in a thread's state, a frame, a code object and a str. Tests compare what
// comes of it with the interpreter's own tracebacks.
struct Python::Layout {
    int version;
    bool through_cframe;
    std::size_t current, code, previous, instruction, owner;
    std::size_t first_line, file, name, lines, instructions;
    std::size_t ascii, other;  // sizes of the heads of the two kinds of str

    const void* innermost(const void* state) const {
        const void* holder = state != nullptr && through_cframe ? read_at<const void*>(state, kCframe) : state;
        return holder == nullptr ? nullptr : read_at<const void*>(holder, current);
    }
    const void* code_of(const void* frame) const { return read_at<const void*>(frame, code); }
    const void* before(const void* frame) const { return read_at<const void*>(frame, previous); }

    // Where the frame is: in bytes from the first instruction in 3.10, an address in the code object later.
    std::uint64_t instruction_of(const void* frame) const {
        return instructions == 0 ? 2 * static_cast<std::uint64_t>(read_at<std::int32_t>(frame, instruction))
                                 : read_at<std::uint64_t>(frame, instruction);
    }

    // Frames that stand for a call from C, and what is no frame, are left out.
    bool shown(const void* frame, const void* code_type) const {
        const bool by_c = owner != 0 && read_at<std::uint8_t>(frame, owner) == kOwnedByC;
        return code_of(frame) != nullptr && !by_c && read_at<const void*>(code_of(frame), kType) == code_type;
    }

    std::uint64_t line(const void* frame) const {
        const void* const in = code_of(frame);
        const std::uint64_t at = instruction_of(frame);
        Lines walk(read_at<const void*>(in, lines), read_at<std::uint32_t>(in, first_line));
        return instructions == 0 ? walk.of_pairs(at)
                                 : walk.of_locations(at - reinterpret_cast<std::uintptr_t>(in) - instructions);
    }

    // A str in its compact form, which names in code objects have: signs of one, two or four bytes behind its head.
    void print(const void* str, Text& text) const {
        const auto state = read_at<std::uint32_t>(str, kBytes);
        const std::size_t width = state >> 2 & 7;
        const std::size_t head = (state & 0x40) != 0 ? ascii : other;
        const std::uint64_t length = std::min(read_at<std::uint64_t>(str, kLength), kNameMax);
        text << "\"";
        for (std::size_t at = head; at < head + length * width; at += width) {
            text.sign(width == 1   ? read_at<std::uint8_t>(str, at)
                      : width == 2 ? read_at<std::uint16_t>(str, at)
                                   : read_at<std::uint32_t>(str, at));
        }
        text << "\"";
    }
};
const Python::Layout Python::kLayouts[] = {
    {310, false, 24, 32, 24, 96, 0, 40, 104, 112, 120, 0, 48, 72},
    {311, true, 8, 32, 48, 56, 69, 72, 112, 120, 136, 184, 48, 72},
    {312, true, 0, 0, 8, 56, 70, 68, 112, 120, 136, 192, 40, 56},
    {313, false, 72, 0, 8, 56, 70, 68, 112, 120, 136, 200, 40, 56},
};

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15U;
    return hash ^ (hash >> 29);
}

void Python::find() {
    thread_state_ = reinterpret_cast<void* (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState"));
    const auto version = reinterpret_cast<const char* (*)()>(dlsym(RTLD_DEFAULT, "Py_GetVersion"));
    code_type_ = dlsym(RTLD_DEFAULT, "PyCode_Type");
    if (thread_state_ == nullptr || version == nullptr || code_type_ == nullptr) {
        thread_state_ = nullptr;
        return;
    }
    char* minor = nullptr;
    const long major = std::strtol(version(), &minor, 10);
    const long number = major * 100 + std::strtol(minor + 1, nullptr, 10);
    for (const Layout& layout : kLayouts) {
        if (layout.version == number && std::strstr(version(), "free-threading") == nullptr) {
            layout_ = &layout;
        }
    }
    // A build with other structures, such as one for debugging, shows itself by what is no code object.
    void* own = state();
    const void* frame = layout_ == nullptr ? nullptr : layout_->innermost(own);
    if (frame != nullptr && read_at<const void*>(layout_->code_of(frame), kType) != code_type_) {
        layout_ = nullptr;
    }
}

std::uint64_t Python::place(void* state) const {
    of_another_thread = state != this->state();
    const void* frame = layout_ == nullptr ? nullptr : layout_->innermost(state);
    std::uint64_t hash = frame == nullptr ? 0 : 1;
    for (int depth = 0; frame != nullptr && depth < kFramesMax; ++depth) {
        hash = mixed(hash, reinterpret_cast<std::uintptr_t>(layout_->code_of(frame)));
        hash = mixed(hash, layout_->instruction_of(frame));
        frame = layout_->before(frame);
    }
    return hash;
}

void Python::print(void* state, Text& text) const {
    of_another_thread = state != this->state();
    const void* frame = layout_ == nullptr ? nullptr : layout_->innermost(state);
    bool fits = true;
    for (int depth = 0; fits && frame != nullptr && depth < kFramesMax; ++depth) {
        if (layout_->shown(frame, code_type_)) {
            const void* code = layout_->code_of(frame);
            fits = text.whole([&] {
                layout_->print(read_at<const void*>(code, layout_->file), text.item() << "[");
                text << "," << layout_->line(frame) << ",";
                layout_->print(read_at<const void*>(code, layout_->name), text);
                text << "]";
            });
        }
        frame = layout_->before(frame);
    }
}

}  // namespace hostrace
