#include "hostrace/watcher.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <csignal>
#include <ctime>

#include <algorithm>
#include <atomic>
#include <new>

#include "hostrace/errno_kept.h"
#include "hostrace/interpose.h"
#include "hostrace/libc.h"
#include "hostrace/memory_calls.h"
#include "hostrace/thread.h"

namespace hostrace {
namespace {

constexpr std::uint64_t kHoldStepNs = 20'000;

std::atomic<Watcher*> the_watcher{nullptr};
std::atomic<const char*> why_nothing{nullptr};

// The process of the watcher. Linux empties it in each child with memory of its own, however that was made: _Fork and
// calls by number run no handlers of forks.
constexpr int kUnknown = -1;
std::atomic<int> of_any_process{kUnknown};
std::atomic<int>* process = &of_any_process;

void mark_this_process() {
    void* const page = mmap(nullptr, kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED && madvise(page, kPageSize, MADV_WIPEONFORK) == 0) {
        process = new (page) std::atomic<int>{getpid()};
    }
}

void wait_a_little() {
    const timespec step{0, static_cast<long>(kHoldStepNs)};
    libc::nanosleep(step);
}

}  // namespace

namespace {

[[gnu::tls_model("initial-exec")]] constinit thread_local Thread thread;

}  // namespace

Thread& self() {
    if (thread.id == 0) {
        thread.id = -1;  // whoever is called here may come here again
        thread.id = static_cast<int>(to_linux(SYS_gettid));
        std::uint64_t before = 0;
        to_linux(SYS_rt_sigprocmask, SIG_UNBLOCK, &kOurSignals, &before, sizeof before);
        thread.blocked = before & kOurSignals;
    }
    return thread;
}

std::uint64_t begin_in_handler(std::uint64_t mask) {
    if (thread.id != 0) {
        return mask;
    }
    thread.id = static_cast<int>(to_linux(SYS_gettid));
    thread.blocked = mask & kOurSignals;
    return mask & ~kOurSignals;
}

std::uint64_t now_ns() {
    timespec now{};
    libc::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

Watcher* watcher() { return ended_in_child() ? nullptr : the_watcher.load(std::memory_order_acquire); }

void set_watcher(Watcher* started) {
    if (started != nullptr) {
        mark_this_process();
    }
    the_watcher.store(started, std::memory_order_release);
}

bool ended_in_child() {
    if (the_watcher.load(std::memory_order_acquire) == nullptr || process->load(std::memory_order_relaxed) != 0) {
        return false;
    }
    end_in_child();
    return true;
}

bool in_child_of_vfork() {
    const int its = watcher() == nullptr ? kUnknown : process->load(std::memory_order_relaxed);
    return its != kUnknown && its != to_linux(SYS_getpid);
}

void end_in_child() {
    if (Watcher* watch = the_watcher.exchange(nullptr)) {
        const ErrnoKept of_the_program;
        watch->report.close_in_child();
        watch->guard.end_in_child();
    }
}

const char* why_nothing_is_protected() { return why_nothing.load(std::memory_order_acquire); }

void stop_protecting(const char* why) {
    const char* before = nullptr;
    if (!why_nothing.compare_exchange_strong(before, why)) {
        return;
    }
    if (Watcher* watch = watcher()) {
        watch->guard.open_all_for_good();
        watch->report.note(why);
    }
}

void stop_watching(const char* why) {
    stop_protecting(why);
    if (Watcher* watch = watcher()) {
        watch->guard.end();
    }
}

void leave_alone(Watcher& watch, Span span) {
    if (span.empty() || !watch.ranges.meet(span) || watch.left_alone.holds(span)) {
        return;
    }
    if (!watch.left_alone.add(span)) {
        stop_protecting(
            "the program protects pinned memory, runs on it, or has locks in what it registered, at many places: "
            "no page is protected, and only changes of what copies read are seen");
    }
    if (watch.guard.locked_by_me()) {
        static_cast<void>(watch.open_past_the_books(span));  // for a handler that interrupted us at our books
    } else {
        watch.guard.forget(span);
    }
}

void leave_alone(const void* begin, std::size_t bytes) {
    Watcher* watch = watcher();
    const auto at = reinterpret_cast<std::uintptr_t>(begin);
    if (watch != nullptr && bytes != 0 && watch->ranges.near(at, std::min(bytes, ~at))) {
        const ErrnoKept of_the_program;
        leave_alone(*watch, pages_around({at, at + bytes}));
    }
}

void leave_calls() {
    if (Watcher* watch = watcher(); watch != nullptr && !watch->guard.locked_by_me()) {
        watch->guard.abandon();
    }
}

Watcher::Watcher(const char* folder, std::uint64_t hold_limit_ns, bool order, bool gates, Pages& pages)
    : hold_ns(hold_limit_ns),
      by_order(order),
      gates_are_busy(gates),
      counts(counts_in(folder)),
      guard(pages, counts, hold_ns != 0),
      report(folder, counts, stacks) {}

void Watcher::raced(const Race& race) {
    const Use& use = race.verdict.use;
    const Pair pair = report.say(race);
    if (hold_ns == 0) {
        return;
    }
    // A pair that waited in vain once would do so again: whoever polls on purpose must not be slowed down for ever.
    const std::uint64_t until = now_ns() + hold_ns;
    while (!use.finished() && !report.gave_up(pair)) {
        if (now_ns() >= until) {
            report.give_up(pair);
            break;
        }
        wait_a_little();
    }
    guard.release(use.id);
}

void Watcher::observed() {
    guard.retire();
    digests.compare([&](const Use& use, Span bytes, Digests::Found found) {
        if (found != Digests::Found::changed && found != Digests::Found::gone) {
            return;
        }
        Verdict verdict;
        verdict.answer = Answer::race;
        verdict.grade = use.doubtful() || use.perhaps_observed() ? Grade::possible : Grade::unordered;
        verdict.use = use;
        verdict.at = bytes.begin;
        Frames frames;
        native_frames(frames);
        const Access access = found == Digests::Found::gone ? Access::give_back : Access::write;
        raced({verdict, access, "compared", nullptr, frames.data()});
    });
}

Opening Watcher::settle(std::uintptr_t begin, std::size_t bytes, Access access, const char* how) {
    if (bytes == 0 || !ranges.near(begin, bytes)) {
        return {};
    }
    bytes = std::min(bytes, ~begin - kPageSize);
    if (guard.locked_by_me()) {
        static_cast<void>(open_past_the_books({begin, begin + bytes}));
        return {};
    }
    for (;;) {
        const Verdict verdict = guard.settle(begin, bytes, access);
        if (verdict.answer != Answer::race) {
            return verdict.opening;
        }
        Frames frames;
        native_frames(frames);
        raced({verdict, access, how, nullptr, frames.data()});
    }
}

bool Watcher::open_past_the_books(Span touched) {
    count(counts.dropped);
    const auto opened = [](std::uintptr_t address, std::uintptr_t page) {
        return libc::mprotect(reinterpret_cast<void*>(address & ~(page - 1)), page, PROT_READ | PROT_WRITE) == 0;
    };
    const std::uintptr_t large = guard.large_page();
    bool any = false;
    const Span pages = pages_around(touched);
    for (std::uintptr_t page = pages.begin; page != pages.end; page += kPageSize) {
        any |=
            ranges.meet({page, page + kPageSize}) && (opened(page, kPageSize) || (large != 0 && opened(page, large)));
    }
    return any;
}

void Watcher::give_back(std::uintptr_t begin, std::size_t bytes, const char* how) {
    if (bytes == 0) {
        return;
    }
    digests.forget({begin, begin + bytes});
    const Verdict verdict = guard.give_back(begin, bytes);
    if (verdict.answer == Answer::race) {
        Frames frames;
        native_frames(frames);
        raced({verdict, Access::give_back, how, nullptr, frames.data()});
    }
}

}  // namespace hostrace
