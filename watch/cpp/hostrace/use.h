// One asynchronous use of pinned host memory by the device.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hostrace {

// Addresses from `begin` to before `end`.
struct Span {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;

    bool operator==(const Span&) const = default;
    bool empty() const { return begin == end; }
    bool meets(const Span& other) const { return begin < other.end && other.begin < end; }
};

// On aarch64 it is the kernel's choice, 4 or 64 KiB.
#if defined(__x86_64__)
inline constexpr std::uintptr_t kPageSize = 4096;
#else
inline const auto kPageSize = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
#endif
// Of pools of large pages, which are protected as a whole or not at all.
inline constexpr std::array<std::uintptr_t, 2> kLargePageSizes{std::uintptr_t{2} << 20, std::uintptr_t{1} << 30};

// Pages that hold any of the bytes, or nothing but them.
inline Span pages_around(Span span, std::uintptr_t page = kPageSize) {
    return {span.begin & ~(page - 1), (span.end + page - 1) & ~(page - 1)};
}
inline Span pages_inside(Span span, std::uintptr_t page = kPageSize) {
    const Span inside{(span.begin + page - 1) & ~(page - 1), span.end & ~(page - 1)};
    return inside.begin < inside.end ? inside : Span{};
}

// Bytes in memory: `slices` times `rows` times `width` bytes. What lies in one piece is one row of one slice.
struct Shape {
    std::uintptr_t begin = 0;
    std::size_t width = 0;
    std::size_t pitch = 0;  // from row to row
    std::size_t rows = 1;
    std::size_t slice_pitch = 0;  // from slice to slice
    std::size_t slices = 1;

    std::uintptr_t end() const { return begin + (slices - 1) * slice_pitch + (rows - 1) * pitch + width; }
    bool empty() const { return width == 0 || rows == 0 || slices == 0; }
    bool holds(const Shape& other) const {
        return rows == 1 && slices == 1 && begin <= other.begin && other.end() <= end();
    }
    // The first byte in [from, to) that belongs to it, or `to`.
    std::uintptr_t first_in(std::uintptr_t from, std::uintptr_t to) const;
};

// A promised copy should have read its source when the call returned. What stands in the body of a conditional node may
// not run at all.
enum class Kind : std::uint8_t {
    copy,
    memset,
    kernel,
    graph_copy,
    graph_memset,
    graph_kernel,
    promised_copy,
    conditional_copy,
    conditional_memset
};
enum class Access : std::uint8_t { read, write, give_back };
// How sure a race is: the use was not over; it was, but nobody could know; or there may be an order that is not known.
enum class Grade : std::uint8_t { race, unordered, possible };

// What the device does with some of it.
struct Side {
    Shape shape;
    Kind kind = Kind::copy;
    bool device_writes = false;
    // Range and direction are known: a touch is a race, not only a possible one. Else it begins there, and may go on.
    bool certain = true;

    bool doubtful() const {
        return !certain || kind == Kind::promised_copy || kind == Kind::conditional_copy ||
               kind == Kind::conditional_memset;
    }
    bool forbids(Access access) const { return device_writes || access != Access::read; }
};

// A number that a stream writes into a word of its own behind what was enqueued before. It only grows, and wraps.
struct Mark {
    const volatile std::uint32_t* flag = nullptr;  // null where the stream took none
    std::uint32_t sequence = 0;

    bool passed() const {
        return flag == nullptr || static_cast<std::int32_t>(__atomic_load_n(flag, __ATOMIC_ACQUIRE) - sequence) >= 0;
    }
};

// Up to which of a stream's uses the program has observed that they are over, and perhaps has by means not known here.
struct Seen {
    std::atomic<std::uint64_t> by_host{0}, perhaps{0};
};

struct Use : Side {
    // Pages that are not wholly in it hold memory of others, too, and are not protected for this use.
    Span whole{0, ~std::uintptr_t{0}};
    bool registered = false;          // by the program, which may have taken it from a pool of large pages
    std::uintptr_t page = kPageSize;  // the size of its pages

    Span pages() const {
        const Span around = pages_around({shape.begin, shape.end()}, page);
        const Span inside = pages_inside(whole, page);
        const Span both{std::max(around.begin, inside.begin), std::min(around.end, inside.end)};
        return both.begin < both.end ? both : Span{};
    }
    Mark ends;
    // The device waits for the host until then: whoever touches before that is ordered before the use.
    Mark begins;
    // Null where the end itself is enough.
    const Seen* seen = nullptr;
    std::uint64_t order = 0;
    std::uint32_t neighbours = 0;  // touches beside it since it ended
    std::uint32_t stack = 0;
    std::uint32_t pinned = 0;  // the stack of the call that pinned its memory
    int thread = 0;
    const void* context = nullptr;
    std::uint64_t stream = 0;
    std::uint64_t since_ns = 0;
    std::uint64_t id = 0;

    bool finished() const { return ends.passed(); }
    // Once it has ended. What a kernel does with its memory is not known, so its end is enough.
    bool observed() const {
        return seen == nullptr || !certain || order <= seen->by_host.load(std::memory_order_acquire);
    }
    bool perhaps_observed() const { return order <= seen->perhaps.load(std::memory_order_relaxed); }
    // Of a touch that it forbids. The use may have ended, and somebody may have observed that, since it was looked at.
    Grade grade() const {
        if (doubtful()) {
            return Grade::possible;
        }
        if (!finished()) {
            return Grade::race;
        }
        return observed() || perhaps_observed() ? Grade::possible : Grade::unordered;
    }
};

}  // namespace hostrace
