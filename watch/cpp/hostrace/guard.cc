#include "hostrace/guard.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace hostrace {
namespace {

// Of the calling thread: how often it has every page open.
[[gnu::tls_model("initial-exec")]] constinit thread_local std::size_t all_open_here = 0;

Protection needed(const Use& use) { return use.device_writes ? Protection::closed : Protection::read_only; }

}  // namespace

std::uintptr_t Shape::first_in(std::uintptr_t from, std::uintptr_t to) const {
    from = std::max(from, begin);
    to = std::min(to, end());
    if (from >= to) {
        return to;
    }
    if (rows == 1 && slices == 1) {
        return from;
    }
    const std::size_t offset = from - begin;
    const std::size_t slice = slices > 1 ? offset / slice_pitch : 0;
    const std::size_t in_slice = offset - slice * slice_pitch;
    const std::size_t row = rows > 1 ? std::min(in_slice / pitch, rows - 1) : 0;
    if (in_slice - row * pitch < width) {
        return from;
    }
    const std::uintptr_t next =
        row + 1 < rows ? begin + slice * slice_pitch + (row + 1) * pitch : begin + (slice + 1) * slice_pitch;
    return std::min(next, to);
}

bool Guard::nothing_in(Span span) const {
    const std::size_t count = uses_.load(std::memory_order_relaxed);
    const auto meets = [&](const Span& each) { return each.meets(span); };
    return all_open_ == 0 && std::none_of(spans_.begin(), spans_.begin() + count, meets) &&
           std::none_of(openings_.begin(), openings_.begin() + openings_end_,
                        [&](const Opening& each) { return each.pages.meets(span); });
}

// What the first `count` uses want for the page, and until where nothing changes.
Guard::Wanted Guard::wanted(std::uintptr_t page, std::uintptr_t end, std::size_t count) const {
    Wanted found{end, Protection::open, all_open_ != 0 ? Protection::open : Protection::closed};
    const auto covers = [&](const Span& each) {
        if (each.end <= page || each.begin >= found.until) {
            return false;
        }
        found.until = each.begin > page ? each.begin : std::min(found.until, each.end);
        return each.begin <= page;
    };
    for (std::size_t at = 0; at < count; ++at) {
        if (covers(spans_[at])) {
            found.by_uses = std::max(found.by_uses, needed(list_[at]));
        }
    }
    for (std::size_t at = 0; at < openings_end_; ++at) {
        if (covers(openings_[at].pages)) {
            found.at_most = std::min(found.at_most, openings_[at].at_most);
        }
    }
    return found;
}

// Give pages the protection that they have to have. Pages that no use has are the program's: only those that a use had
// until now are changed. Pages side by side are changed by one call: it costs more than everything else here.
bool Guard::apply(Span span, Scope scope) {
    const std::size_t uses = uses_.load(std::memory_order_relaxed);
    const Use* const added = scope == Scope::added ? &list_[uses - 1] : nullptr;
    const std::size_t count = uses - (added == nullptr ? 0 : 1);
    bool done = true;
    Span change{};
    Protection to = Protection::open;
    const auto flush = [&] {
        done = (change.begin == change.end || pages_.protect(change.begin, change.end - change.begin, to)) && done;
    };
    for (std::uintptr_t page = span.begin; page < span.end;) {
        const Wanted had = wanted(page, span.end, count);
        const Protection all = added == nullptr ? had.by_uses : std::max(had.by_uses, needed(*added));
        const Protection now = std::min(all, had.at_most);
        const bool differs = added != nullptr ? now != std::min(had.by_uses, had.at_most)
                                              : scope == Scope::all || had.by_uses != Protection::open;
        if (differs) {
            if (change.end != page || to != now) {
                flush();
                change.begin = page;
                to = now;
            }
            change.end = had.until;
        }
        page = had.until;
    }
    flush();
    return done;
}

// The books close over what went; its spans stay behind the end of the list.
template <typename Gone>
std::size_t Guard::take_out(Gone gone) {
    const std::size_t before = uses_.load(std::memory_order_relaxed);
    std::size_t kept = before;
    for (std::size_t at = 0; at < kept;) {
        if (gone(spans_[at], list_[at])) {
            --kept;
            std::swap(spans_[at], spans_[kept]);
            list_[at] = list_[kept];
        } else {
            ++at;
        }
    }
    uses_.store(kept, std::memory_order_relaxed);
    return before - kept;
}

template <typename Gone>
std::size_t Guard::remove(Gone gone) {
    const std::size_t removed = take_out(gone);
    Span* const from = spans_.data() + uses_.load(std::memory_order_relaxed);
    Span* const end = from + removed;
    std::sort(from, end, [](const Span& one, const Span& other) { return one.begin < other.begin; });
    for (const Span* at = from; at != end;) {
        const Span* const first = at;
        Span run = *first;
        while (++at != end && at->begin <= run.end) {
            run.end = std::max(run.end, at->end);
        }
        if (run.empty()) {
            continue;
        }
        if (nothing_in(run) ? !pages_.protect(run.begin, run.end - run.begin, Protection::open)
                            : !apply(run, Scope::all)) {
            // A part of it is no longer mapped: the rest must not stay protected.
            std::for_each(first, at, [&](const Span& each) { static_cast<void>(apply(each, Scope::all)); });
        }
    }
    return removed;
}

bool Guard::add(Use& use) {
    const std::lock_guard<OwnedLock> held(lock_);
    if (ended()) {
        return false;
    }
    if (uses_.load(std::memory_order_relaxed) == kUsesMax) {
        retire_locked();
        let_go_oldest();
    }
    const bool room = uses_.load(std::memory_order_relaxed) < kUsesMax;
    bool done = room && protected_for(use);
    for (const std::uintptr_t large : kLargePageSizes) {
        if (room && !done && use.registered) {
            use.page = large;
            done = protected_for(use);
        }
    }
    count(done ? counts_.guarded : counts_.dropped);
    const bool whole = use.pages() == pages_around({use.shape.begin, use.shape.end()}, use.page);
    count(counts_.shared_pages, done && !whole && !use.whole.empty() ? 1 : 0);
    if (done && use.page != kPageSize) {
        large_page_.store(use.page, std::memory_order_relaxed);
    }
    return done;
}

// It stays in the books where its pages take the protection, or where there are none that nobody else has.
bool Guard::protected_for(const Use& given) {
    const std::size_t at = uses_.load(std::memory_order_relaxed);
    const Span span = given.pages();
    const Span around = pages_around({given.shape.begin, given.shape.end()}, given.page);
    const bool alone = nothing_in(span);
    Use& use = list_[at];
    use = given;
    use.id = next_id_++;
    spans_[at] = span;
    // Before the pages change: who asks without the lock, or faults there, must not believe that nothing is ours.
    uses_.store(at + 1, std::memory_order_relaxed);
    lowest_.store(std::min(lowest_.load(std::memory_order_relaxed), around.begin), std::memory_order_relaxed);
    highest_.store(std::max(highest_.load(std::memory_order_relaxed), around.end), std::memory_order_relaxed);
    const bool bare = span.empty();
    if (!bare &&
        !(alone ? pages_.protect(span.begin, span.end - span.begin, needed(use)) : apply(span, Scope::added))) {
        remove_id(use.id);
        return false;
    }
    if (!alone && !bare) {  // the same buffer again: the new use has taken the pages over as they were
        take_out([&, id = use.id, wants = needed(use), seen = use.seen](const Span& each, const Use& old) {
            const bool covered = span.begin <= each.begin && each.end <= span.end;
            return covered && old.id != id && needed(old) <= wants && old.finished() &&
                   (old.observed() || (old.seen == seen && given.shape.holds(old.shape)));
        });
    }
    return true;
}

bool Guard::open_for(const Opening& opening) {
    std::size_t at = 0;
    while (at < openings_end_ && !openings_[at].empty()) {
        ++at;
    }
    if (at == kOpeningsMax) {
        return false;
    }
    const std::size_t end_before = openings_end_;
    openings_[at] = opening;
    openers_[at] = this_thread();
    openings_end_ = std::max(openings_end_, at + 1);
    if (!apply(opening.pages, Scope::used)) {
        openings_[at] = {};
        openings_end_ = end_before;
        return false;
    }
    return true;
}

Guard::Met Guard::meet(std::uintptr_t begin, std::uintptr_t end, Access access, Verdict& verdict) {
    const Span touched{begin, end};
    const Span span = pages_around(touched);
    const auto here = [&](const Span& each, const Use& use) {
        return each.meets(span) || touched.meets({use.shape.begin, use.shape.end()});
    };
    Met met;
    const auto inside = [&](const Use& use) {
        return use.forbids(access) && use.shape.first_in(begin, end) < std::min(end, use.shape.end());
    };
    const std::size_t ended =
        remove([&](const Span& each, const Use& use) { return here(each, use) && use.finished() && use.observed(); });
    const std::size_t unbegun = remove(
        [&](const Span& each, const Use& use) { return here(each, use) && !use.begins.passed() && inside(use); });
    const std::size_t in_the_way = remove([&](const Span& each, Use& use) {
        return here(each, use) && use.finished() && use.forbids(access) && !inside(use) &&
               ++use.neighbours > kNeighboursMax;
    });
    met.ended = ended + unbegun + in_the_way != 0;
    count(counts_.faults_stale, ended != 0 ? 1 : 0);
    count(counts_.unbegun, unbegun);
    count(counts_.let_go, in_the_way);
    for (std::size_t at = 0; at < uses_.load(std::memory_order_relaxed); ++at) {
        const Use& use = list_[at];
        if (!here(spans_[at], use) || !use.forbids(access)) {
            continue;
        }
        met.neighbour = true;
        met.page = std::max(met.page, use.page);
        const Grade grade = use.grade();
        if (inside(use) && (verdict.answer != Answer::race || grade < verdict.grade)) {
            verdict.answer = Answer::race;
            verdict.grade = grade;
            verdict.at = use.shape.first_in(begin, end);
            verdict.use = use;
        }
    }
    if (verdict.answer == Answer::race && !hold_) {
        remove_id(verdict.use.id);
    }
    return met;
}

Verdict Guard::touch(std::uintptr_t begin, std::size_t bytes, Access access) {
    Verdict verdict;
    if (begin + bytes <= lowest_.load(std::memory_order_relaxed) || begin >= highest_.load(std::memory_order_relaxed)) {
        return verdict;
    }
    const std::lock_guard<OwnedLock> held(lock_);
    const Met met = meet(begin, begin + bytes, access, verdict);
    const Opening opening{pages_around({begin, begin + bytes}, met.page), Protection::open};
    if (verdict.answer == Answer::race) {
        return verdict;
    }
    if (!met.neighbour) {
        verdict.answer = met.ended ? Answer::opened : Answer::nothing;
    } else if (open_for(opening)) {
        verdict.opening = opening;
        count(counts_.steps);
        verdict.answer = Answer::step;
    } else {
        // No room to open one page among protected ones: what is in flight here cannot be watched any longer.
        const std::size_t lost = remove([&](const Span& each, const Use&) { return each.meets(opening.pages); });
        count(counts_.dropped, lost);
        verdict.answer = Answer::opened;
    }
    return verdict;
}

Verdict Guard::settle(std::uintptr_t begin, std::size_t bytes, Access access) {
    Verdict verdict;
    const std::lock_guard<OwnedLock> held(lock_);
    const Met met = meet(begin, begin + bytes, access, verdict);
    if (verdict.answer == Answer::race) {
        return verdict;
    }
    count(counts_.steps, met.neighbour ? 1 : 0);
    verdict.answer = Answer::step;
    verdict.opening = {pages_around({begin, begin + bytes}, met.page),
                       access == Access::read ? Protection::read_only : Protection::open};
    if (!open_for(verdict.opening)) {
        verdict.opening = open_all_locked();
    }
    return verdict;
}

// So many calls at once, or memory that was unmapped under a use: nothing is watched until this one has returned.
Opening Guard::open_all_locked() {
    ++all_open_;
    ++all_open_here;
    apply_uses();
    return {kEverything, Protection::open};
}

void Guard::forget(Span pages) {
    const std::lock_guard<OwnedLock> held(lock_);
    remove([&](const Span& each, const Use&) { return each.meets(pages); });
}

Opening Guard::open_for_now(Span pages) {
    const std::lock_guard<OwnedLock> held(lock_);
    const Opening opening{pages, Protection::open};
    return open_for(opening) ? opening : open_all_locked();
}

Opening Guard::open_all_for_now() {
    const std::lock_guard<OwnedLock> held(lock_);
    return open_all_locked();
}

void Guard::apply_uses() {
    const std::size_t count = uses_.load(std::memory_order_relaxed);
    std::for_each(spans_.begin(), spans_.begin() + count,
                  [&](const Span& each) { static_cast<void>(apply(each, Scope::used)); });
}

void Guard::close(const Opening& opening) {
    const std::lock_guard<OwnedLock> held(lock_);
    if (opening.pages == kEverything) {
        return close_all_locked();
    }
    for (std::size_t at = 0; at < openings_end_; ++at) {
        if (openings_[at] == opening && openers_[at] == this_thread()) {
            close_at(at);
            break;
        }
    }
}

void Guard::close_all_locked() {
    all_open_here -= std::min<std::size_t>(all_open_here, 1);
    if (all_open_ != 0 && --all_open_ == 0) {
        apply_uses();
    }
}

void Guard::close_at(std::size_t at) {
    const Span pages = std::exchange(openings_[at], Opening{}).pages;
    while (openings_end_ > 0 && openings_[openings_end_ - 1].empty()) {
        --openings_end_;
    }
    static_cast<void>(apply(pages, Scope::used));
}

void Guard::abandon() {
    const std::lock_guard<OwnedLock> held(lock_);
    for (std::size_t at = 0; at < openings_end_; ++at) {
        if (!openings_[at].empty() && openers_[at] == this_thread()) {
            close_at(at);
        }
    }
    while (all_open_here != 0) {
        close_all_locked();
    }
}

void Guard::open_all_for_good() {
    const std::lock_guard<OwnedLock> held(lock_);
    ++all_open_;
    apply_uses();
}

void Guard::remove_id(std::uint64_t id) {
    remove([&](const Span&, const Use& use) { return use.id == id; });
}

void Guard::release(std::uint64_t id) {
    const std::lock_guard<OwnedLock> held(lock_);
    remove_id(id);
}

Verdict Guard::give_back(std::uintptr_t begin, std::size_t bytes) {
    Verdict verdict;
    const std::lock_guard<OwnedLock> held(lock_);
    remove([&](const Span&, const Use& use) {
        if (use.shape.end() <= begin || begin + bytes <= use.shape.begin) {
            return false;
        }
        // Who frees memory waits for the device.
        if (verdict.answer != Answer::race && !use.finished() && use.begins.passed()) {
            verdict.answer = Answer::race;
            verdict.grade = use.grade();
            verdict.use = use;
            verdict.at = std::max(begin, use.shape.begin);
        }
        return true;
    });
    return verdict;
}

void Guard::retire_locked() {
    remove([](const Span&, const Use& use) { return use.finished() && use.observed(); });
}

// A program that never waits fills the books with uses that have ended. Some go at a time: looking for them takes long.
void Guard::let_go_oldest() {
    constexpr std::uint64_t kAtOnce = kUsesMax / 16;
    if (uses_.load(std::memory_order_relaxed) < kUsesMax) {
        return;
    }
    std::uint64_t oldest = next_id_;
    for (const Use& use : list_) {
        oldest = use.finished() ? std::min(oldest, use.id) : oldest;
    }
    count(counts_.let_go,
          remove([&](const Span&, const Use& use) { return use.id < oldest + kAtOnce && use.finished(); }));
}

void Guard::retire() {
    if (!idle()) {
        const std::lock_guard<OwnedLock> held(lock_);
        retire_locked();
    }
}

void Guard::forget_context(const void* context) {
    const std::lock_guard<OwnedLock> held(lock_);
    remove([&](const Span&, const Use& use) { return context == nullptr || use.context == context; });
}

void Guard::end() {
    const std::lock_guard<OwnedLock> held(lock_);
    ended_.store(true, std::memory_order_relaxed);
    remove([](const Span&, const Use&) { return true; });
}

void Guard::end_in_child() {
    lock_.forget_owner();
    openings_ = {};
    openings_end_ = 0;
    all_open_ = all_open_here = 0;
    end();
}

}  // namespace hostrace
