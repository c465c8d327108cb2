#include "watch/guard.h"

#include <algorithm>
#include <mutex>

namespace kvfix::watch {
namespace {

constexpr std::size_t kNone = ~std::size_t{0};

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

Guard::Span Guard::pages_of(std::uintptr_t begin, std::uintptr_t end) {
    return {begin & ~(kPage - 1), (end + kPage - 1) & ~(kPage - 1)};
}

// What the uses in flight want for the page, and until where they want the same.
Protection Guard::wanted(std::uintptr_t page, std::uintptr_t* until, std::size_t without) const {
    Protection strongest = Protection::open;
    const std::size_t count = uses_.load(std::memory_order_relaxed);
    for (std::size_t at = 0; at < count; ++at) {
        if (spans_[at].end <= page || spans_[at].begin >= *until || at == without) {
            continue;
        }
        if (spans_[at].begin > page) {
            *until = spans_[at].begin;
        } else {
            *until = std::min(*until, spans_[at].end);
            strongest = std::max(strongest, needed(list_[at]));
        }
    }
    for (std::size_t at = 0; at < openings_end_; ++at) {
        const Opening& opening = openings_[at];
        if (opening.end <= page || opening.begin >= *until) {
            continue;
        }
        if (opening.begin > page) {
            *until = opening.begin;
        } else {
            *until = std::min(*until, opening.end);
            strongest = Protection::open;
        }
    }
    return strongest;
}

// The use `changed` comes or goes: touch only pages whose protection differs with it and without it.
bool Guard::apply(Span span, std::size_t changed, bool added) {
    bool done = true;
    for (std::uintptr_t page = span.begin; page < span.end;) {
        std::uintptr_t until = span.end;
        const Protection with = wanted(page, &until, kNone);
        const Protection without = wanted(page, &until, changed);
        if (with != without) {
            done = pages_.protect(page, until - page, added ? with : without) && done;
        }
        page = until;
    }
    return done;
}

bool Guard::apply_everything(Span span) {
    bool done = true;
    for (std::uintptr_t page = span.begin; page < span.end;) {
        std::uintptr_t until = span.end;
        const Protection protection = wanted(page, &until, kNone);
        done = pages_.protect(page, until - page, protection) && done;
        page = until;
    }
    return done;
}

void Guard::take_out(std::size_t at) {
    const std::size_t last = uses_.load(std::memory_order_relaxed) - 1;
    spans_[at] = spans_[last];
    list_[at] = list_[last];
    uses_.store(last, std::memory_order_relaxed);
}

void Guard::remove(std::size_t at) {
    static_cast<void>(apply(spans_[at], at, false));
    take_out(at);
}

// The same buffer again: the new use takes the pages over as they are.
void Guard::drop_finished_inside(const Use& use, Span span) {
    for (std::size_t at = 0; at < uses_.load(std::memory_order_relaxed);) {
        const bool covered = span.begin <= spans_[at].begin && spans_[at].end <= span.end;
        if (covered && needed(list_[at]) <= needed(use) && list_[at].finished() && list_[at].id != use.id) {
            take_out(at);
        } else {
            ++at;
        }
    }
}

bool Guard::add(Use use) {
    const std::lock_guard<OwnedLock> held(lock_);
    if (uses_.load(std::memory_order_relaxed) == kUsesMax) {
        retire_locked();
    }
    const std::size_t at = uses_.load(std::memory_order_relaxed);
    if (at == kUsesMax) {
        counts.dropped.fetch_add(1, std::memory_order_relaxed);
        return false;
    }
    const Span span = pages_of(use.shape.begin, use.shape.end());
    use.id = next_id_++;
    spans_[at] = span;
    list_[at] = use;
    uses_.store(at + 1, std::memory_order_relaxed);
    lowest_.store(std::min(lowest_.load(std::memory_order_relaxed), span.begin), std::memory_order_relaxed);
    highest_.store(std::max(highest_.load(std::memory_order_relaxed), span.end), std::memory_order_relaxed);
    if (!apply(span, at, true)) {
        remove(at);
        counts.dropped.fetch_add(1, std::memory_order_relaxed);
        return false;
    }
    drop_finished_inside(use, span);
    counts.guarded.fetch_add(1, std::memory_order_relaxed);
    return true;
}

bool Guard::open_for(Span span, Opening* opening) {
    std::size_t at = 0;
    while (at < openings_end_ && openings_[at].end != 0) {
        ++at;
    }
    if (at == kOpeningsMax || !pages_.protect(span.begin, span.end - span.begin, Protection::open)) {
        return false;
    }
    *opening = openings_[at] = {span.begin, span.end};
    openings_end_ = std::max(openings_end_, at + 1);
    return true;
}

Verdict Guard::touch(std::uintptr_t begin, std::size_t bytes, Access access) {
    Verdict verdict;
    if (begin + bytes <= lowest_.load(std::memory_order_relaxed) || begin >= highest_.load(std::memory_order_relaxed)) {
        return verdict;
    }
    const std::lock_guard<OwnedLock> held(lock_);
    const Span span = pages_of(begin, begin + bytes);
    bool ended = false;
    bool neighbour = false;
    for (std::size_t at = 0; at < uses_.load(std::memory_order_relaxed);) {
        if (!overlaps(at, span)) {
            ++at;
        } else if (list_[at].finished()) {
            remove(at);
            ended = true;
        } else {
            const Use& use = list_[at];
            const std::uintptr_t first = use.shape.first_in(begin, begin + bytes);
            if (verdict.answer != Answer::race && use.forbids(access) &&
                first < std::min(begin + bytes, use.shape.end())) {
                verdict.answer = Answer::race;
                verdict.at = first;
                verdict.use = use;
            }
            neighbour = neighbour || use.forbids(access);
            ++at;
        }
    }
    if (ended) {
        counts.faults_stale.fetch_add(1, std::memory_order_relaxed);
    }
    if (verdict.answer == Answer::race) {
        if (!hold_) {
            for (std::size_t at = 0; at < uses_.load(std::memory_order_relaxed); ++at) {
                if (list_[at].id == verdict.use.id) {
                    remove(at);
                    break;
                }
            }
        }
        return verdict;
    }
    if (!neighbour) {
        verdict.answer = ended ? Answer::opened : Answer::nothing;
    } else if (open_for(span, &verdict.opening)) {
        counts.steps.fetch_add(1, std::memory_order_relaxed);
        verdict.answer = Answer::step;
    } else {
        // No room to open one page among protected ones: what is in flight here cannot be watched any longer.
        for (std::size_t at = 0; at < uses_.load(std::memory_order_relaxed);) {
            if (overlaps(at, span)) {
                remove(at);
                counts.dropped.fetch_add(1, std::memory_order_relaxed);
            } else {
                ++at;
            }
        }
        verdict.answer = Answer::opened;
    }
    return verdict;
}

void Guard::close(const Opening& opening) {
    const std::lock_guard<OwnedLock> held(lock_);
    for (std::size_t at = 0; at < openings_end_; ++at) {
        if (openings_[at].begin == opening.begin && openings_[at].end == opening.end) {
            openings_[at] = {};
            break;
        }
    }
    while (openings_end_ > 0 && openings_[openings_end_ - 1].end == 0) {
        --openings_end_;
    }
    static_cast<void>(apply_everything({opening.begin, opening.end}));
}

void Guard::release(std::uint64_t id) {
    const std::lock_guard<OwnedLock> held(lock_);
    for (std::size_t at = 0; at < uses_.load(std::memory_order_relaxed); ++at) {
        if (list_[at].id == id) {
            remove(at);
            return;
        }
    }
}

Verdict Guard::give_back(std::uintptr_t begin, std::size_t bytes) {
    Verdict verdict;
    const std::lock_guard<OwnedLock> held(lock_);
    for (std::size_t at = 0; at < uses_.load(std::memory_order_relaxed);) {
        if (list_[at].shape.end() <= begin || begin + bytes <= list_[at].shape.begin) {
            ++at;
            continue;
        }
        if (!list_[at].finished() && verdict.answer != Answer::race) {
            verdict.answer = Answer::race;
            verdict.use = list_[at];
            verdict.at = std::max(begin, list_[at].shape.begin);
        }
        remove(at);
    }
    return verdict;
}

void Guard::retire_locked() {
    for (std::size_t at = 0; at < uses_.load(std::memory_order_relaxed);) {
        if (list_[at].finished()) {
            remove(at);
        } else {
            ++at;
        }
    }
}

void Guard::retire() {
    if (idle()) {
        return;
    }
    const std::lock_guard<OwnedLock> held(lock_);
    retire_locked();
}

void Guard::forget_context(const void* context) {
    const std::lock_guard<OwnedLock> held(lock_);
    for (std::size_t at = 0; at < uses_.load(std::memory_order_relaxed);) {
        if (context == nullptr || list_[at].context == context) {
            remove(at);
        } else {
            ++at;
        }
    }
}

void Guard::open_all() { forget_context(nullptr); }

void Guard::open_all_in_child() {
    lock_.reset();
    openings_ = {};
    openings_end_ = 0;
    open_all();
}

}  // namespace kvfix::watch
