#include "hostrace/digests.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace hostrace {
namespace {

constexpr std::size_t kLanes = 4;
constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15U;
using Lanes = std::array<std::uint64_t, kLanes>;
using Block = std::array<std::uint64_t, 2048>;

void mix(Lanes& lanes, const Block& block, std::size_t words) {
    for (std::size_t at = 0; at < words; at += kLanes) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            const std::uint64_t value = (lanes[lane] ^ block[at + lane]) * kFactor;
            lanes[lane] = value ^ (value >> 32U);
        }
    }
}

Span bytes_of(const Use& use) { return {use.shape.begin, use.shape.end()}; }

}  // namespace

// Through the kernel: the memory may have been unmapped.
bool digest_of(Span bytes, std::uint64_t& digest) {
    Lanes lanes{1, 2, 3, 4};
    Block block{};
    for (std::uintptr_t at = bytes.begin; at < bytes.end;) {
        const std::size_t count = std::min(bytes.end - at, sizeof block);
        const std::size_t words = (count + sizeof(Lanes) - 1) / sizeof(Lanes) * kLanes;
        std::fill_n(block.begin() + (words - std::min(words, kLanes)), std::min(words, kLanes), 0);
        const iovec ours{block.data(), count};
        const iovec theirs{reinterpret_cast<void*>(at), count};
        if (process_vm_readv(getpid(), &ours, 1, &theirs, 1, 0) != static_cast<ssize_t>(count)) {
            return false;
        }
        mix(lanes, block, words);
        at += count;
    }
    for (const std::uint64_t lane : lanes) {
        digest = (digest ^ lane) * kFactor;
    }
    return true;
}

bool mapped(Span bytes) {
    const Span pages = pages_around(bytes);
    std::array<unsigned char, 256> there{};
    for (std::uintptr_t at = pages.begin; at < pages.end; at += there.size() * kPageSize) {
        const std::size_t count = std::min(pages.end - at, there.size() * kPageSize);
        if (mincore(reinterpret_cast<void*>(at), count, there.data()) != 0) {
            return false;
        }
    }
    return true;
}

bool Digests::add(const Use& use, Span bytes) {
    const std::lock_guard held(mutex_);
    forget_written();
    const auto here = [&](const Use& other) { return bytes_of(other).meets(bytes); };
    Entry entry{use, bytes, 0};
    if (std::any_of(written_.begin(), written_.end(), here) || !digest_of(bytes, entry.digest)) {
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
    const std::lock_guard held(mutex_);
    forget_written();
    written_.push_back(use);
}

void Digests::forget(Span bytes) {
    const std::lock_guard held(mutex_);
    std::erase_if(entries_, [&](const Entry& each) { return each.bytes.meets(bytes); });
    waiting_.store(entries_.size(), std::memory_order_relaxed);
}

void Digests::forget_context(const void* context) {
    const std::lock_guard held(mutex_);
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
    if (digest_of(entry.bytes, now)) {
        return now == entry.digest ? Found::as_it_was : Found::changed;
    }
    return mapped(entry.bytes) ? Found::as_it_was : Found::gone;
}

}  // namespace hostrace
