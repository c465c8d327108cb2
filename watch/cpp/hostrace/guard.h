// The books of the uses in flight and of the pages that are protected for them. Everything here may run in a signal
// handler: it allocates nothing, and takes one lock, which is never held while memory of the program is touched.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "hostrace/counts.h"
#include "hostrace/owned_lock.h"
#include "hostrace/use.h"

namespace hostrace {

enum class Protection : std::uint8_t { open, read_only, closed };

// What changes the protection of pages: mprotect, or a test's double.
class Pages {
  public:
    virtual bool protect(std::uintptr_t begin, std::size_t bytes, Protection protection) = 0;
    // The parts that are not there to be read and written alone, such as code. They would not be again what they were.
    virtual std::vector<Span> with_other_rights(Span span) = 0;

  protected:
    ~Pages() = default;
};

// Pages that are protected less while one instruction, or one call of the kernel, goes through.
struct Opening {
    Span pages;
    Protection at_most = Protection::open;

    bool operator==(const Opening&) const = default;
    bool empty() const { return pages.empty(); }
};

enum class Answer : std::uint8_t {
    foreign,  // nothing of ours is there
    nothing,  // something of ours was there a moment ago: try again
    opened,   // what stood in the way has ended
    race,     // `use` is in flight, or nobody observed that it is over, and the touch is inside it
    step,     // the touch may go on beside what is in flight: `opening` must be closed behind it
};

struct Verdict {
    Answer answer = Answer::foreign;
    Grade grade = Grade::race;
    std::uintptr_t at = 0;  // the first byte that was raced for
    Use use;
    Opening opening;
};

class Guard {
  public:
    static constexpr std::size_t kUsesMax = 4096;
    static constexpr std::size_t kOpeningsMax = 128;
    // Beside a use that has ended: each costs two signals.
    static constexpr std::uint32_t kNeighboursMax = 64;
    static constexpr Span kEverything{0, ~std::uintptr_t{0}};

    // With `hold`, a use that was raced for stays guarded until release() is called for it.
    Guard(Pages& pages, Counts& counts, bool hold) : counts_(counts), pages_(pages), hold_(hold) {}
    std::vector<Span> with_other_rights(Span span) { return pages_.with_other_rights(span); }

    // False where there is no room, or the pages refuse: the use is not watched then. Else it has the size of its pages.
    bool add(Use& use);
    bool add(const Use& use) {
        Use copy = use;
        return add(copy);
    }
    // A touch of [begin, begin + bytes), which the caller makes when this has returned.
    Verdict touch(std::uintptr_t begin, std::size_t bytes, Access access);
    // The same by a call of the kernel, which may wait for long before it touches: where it is no race, the pages stay
    // open for it, whatever is enqueued meanwhile.
    Verdict settle(std::uintptr_t begin, std::size_t bytes, Access access);
    // What is in flight in these pages is not watched any longer, without a word: the program does with them as it likes.
    void forget(Span pages);
    // These pages stay open until the opening is closed.
    Opening open_for_now(Span pages);
    // Every page does.
    Opening open_all_for_now();
    void close(const Opening& opening);
    // What this thread has opened and will not close: it ends, or jumps out of the call that it was for.
    void abandon();
    // From now on every page stays open.
    void open_all_for_good();
    void release(std::uint64_t id);
    // Memory goes back to its owner: the first use in flight there, if any. All of them are forgotten.
    Verdict give_back(std::uintptr_t begin, std::size_t bytes);
    // Give back the pages of everything that has ended, and of which that was observed.
    void retire();
    void forget_context(const void* context);
    // Give everything back for good, and take nothing any more: in a process that ends, while its threads run on; and in
    // a forked child, where nobody else runs. A touch that faulted before is told to try again.
    void end();
    void end_in_child();
    bool ended() const { return ended_.load(std::memory_order_relaxed); }

    // 0 where none of them was seen.
    std::uintptr_t large_page() const { return large_page_.load(std::memory_order_relaxed); }
    bool locked_by_me() const { return lock_.mine(); }
    bool idle() const { return uses_.load(std::memory_order_relaxed) == 0; }

  private:
    struct Wanted {
        std::uintptr_t until;
        Protection by_uses;
        Protection at_most;  // whatever the uses want
    };
    // Which pages apply() changes: those of the added use that differ by it, those of uses, or those without one, too.
    enum class Scope : std::uint8_t { added, used, all };
    // A use that a touch meets: inside it, or in its pages.
    struct Met {
        bool ended = false;
        bool neighbour = false;
        std::uintptr_t page = kPageSize;  // the largest
    };
    Met meet(std::uintptr_t begin, std::uintptr_t end, Access access, Verdict& verdict);
    bool protected_for(const Use& use);
    bool nothing_in(Span span) const;
    Wanted wanted(std::uintptr_t page, std::uintptr_t end, std::size_t count) const;
    bool apply(Span span, Scope scope);
    // Those for which `gone(span, use)` holds leave the books; with `remove` their pages are opened, too.
    template <typename Gone>
    std::size_t take_out(Gone gone);
    template <typename Gone>
    std::size_t remove(Gone gone);
    void remove_id(std::uint64_t id);
    bool open_for(const Opening& opening);
    Opening open_all_locked();
    void close_all_locked();
    void close_at(std::size_t at);
    void apply_uses();
    void retire_locked();
    void let_go_oldest();

    OwnedLock lock_;
    Counts& counts_;
    Pages& pages_;
    const bool hold_;
    std::atomic<std::size_t> uses_{0};
    std::uint64_t next_id_ = 1;
    std::atomic<std::uintptr_t> large_page_{0};
    std::atomic<std::uintptr_t> lowest_{~std::uintptr_t{0}}, highest_{0};
    std::array<Span, kUsesMax> spans_{};  // whole pages, beside the uses: this is what is searched
    std::array<Use, kUsesMax> list_{};
    std::array<Opening, kOpeningsMax> openings_{};
    std::array<const void*, kOpeningsMax> openers_{};  // the threads
    std::size_t openings_end_ = 0;                     // behind the last one that is in use
    std::size_t all_open_ = 0;                         // openings of every page
    std::atomic<bool> ended_{false};
};

}  // namespace hostrace
