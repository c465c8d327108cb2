#include "hostrace/digests.h"

#include <cerrno>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "hostrace/libc.h"

namespace hostrace {
namespace {

constexpr std::size_t kLanes = 4;
constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15U;
using Lanes = std::array<std::uint64_t, kLanes>;

void mix(Lanes& lanes, std::span<const std::uint64_t> block) {
    for (std::size_t at = 0; at < block.size(); at += kLanes) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            const std::uint64_t value = (lanes[lane] ^ block[at + lane]) * kFactor;
            lanes[lane] = value ^ (value >> 32U);
        }
    }
}

Span bytes_of(const Use& use) { return {use.shape.begin, use.shape.end()}; }

}  // namespace

// Through a file: the memory may have been unmapped, or a use may have its pages. Programs in a sandbox may open files,
// and are ended for rarer calls. It is opened each time, because the program may close what it does not know.
Digests::Found Digests::read(Span bytes, std::uint64_t& digest) {
    const int memory = libc::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    if (memory < 0) {
        return Found::unknown;
    }
    Lanes lanes{1, 2, 3, 4};
    Found found = Found::as_it_was;
    for (std::uintptr_t at = bytes.begin; at < bytes.end && found == Found::as_it_was;) {
        const std::size_t count = std::min(bytes.end - at, sizeof block_);
        const std::size_t words = (count + sizeof(Lanes) - 1) / sizeof(Lanes) * kLanes;
        std::fill_n(block_.begin() + (words - kLanes), kLanes, 0);
        const ssize_t got = libc::pread(memory, block_.data(), count, static_cast<off_t>(at));
        if (std::cmp_not_equal(got, count)) {
            found = got >= 0 || errno == EIO ? Found::gone : Found::unknown;
        }
        mix(lanes, std::span(block_).first(words));
        at += count;
    }
    libc::close(memory);
    for (const std::uint64_t lane : lanes) {
        digest = (digest ^ lane) * kFactor;
    }
    return found;
}

bool Digests::add(const Use& use, Span bytes) {
    const std::lock_guard held(lock_);
    drop_what_is_doubtful();
    forget_written();
    const auto here = [&](const Use& other) { return bytes_of(other).meets(bytes); };
    Entry entry{use, bytes, 0};
    if (std::any_of(written_.begin(), written_.end(), here) || read(bytes, entry.digest) != Found::as_it_was) {
        return false;
    }
    if (entries_.size() == kEntriesMax) {
        entries_.erase(entries_.begin());
    }
    entries_.push_back(entry);
    waiting_.store(entries_.size(), std::memory_order_relaxed);
    return true;
}

void Digests::written(const Use& use) {
    forget(bytes_of(use));
    const std::lock_guard held(lock_);
    forget_written();
    written_.push_back(use);
}

void Digests::forget(Span bytes) {
    if (!lock_.lock_unless_mine()) {
        doubtful_.store(true, std::memory_order_relaxed);
        return;
    }
    std::erase_if(entries_, [&](const Entry& each) { return each.bytes.meets(bytes); });
    waiting_.store(entries_.size(), std::memory_order_relaxed);
    lock_.unlock();
}

void Digests::forget_context(const void* context) {
    const std::lock_guard held(lock_);
    const auto its = [&](const Use& use) { return context == nullptr || use.context == context; };
    std::erase_if(entries_, [&](const Entry& each) { return its(each.use); });
    std::erase_if(written_, its);
    waiting_.store(entries_.size(), std::memory_order_relaxed);
}

void Digests::forget_written() {
    std::erase_if(written_, [](const Use& use) { return use.finished(); });
}

Digests::Found Digests::look(const Entry& entry) {
    std::uint64_t now = 0;
    const Found found = read(entry.bytes, now);
    return found == Found::as_it_was && now != entry.digest ? Found::changed : found;
}

}  // namespace hostrace
