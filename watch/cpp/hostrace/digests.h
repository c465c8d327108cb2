// Bytes that a copy reads, and that no page protection covers: a digest of them is taken when the copy is enqueued, and
// again when the program has waited for it. What changed meanwhile was touched before anybody could know that it may be.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "hostrace/owned_lock.h"
#include "hostrace/use.h"

namespace hostrace {

class Digests {
  public:
    enum class Found : std::uint8_t { as_it_was, changed, gone, unknown };

    // Code of the program is about to run in the stream, and may write what `observe` makes known to be over.
    template <typename Observe>
    void let_go(Observe observe) {
        const std::lock_guard held(lock_);
        drop_what_is_doubtful();
        observe();
        std::erase_if(entries_, [](const Entry& each) { return each.use.observed(); });
        waiting_.store(entries_.size(), std::memory_order_relaxed);
    }
    // False where the bytes cannot be read, or where the device writes them before.
    bool add(const Use& use, Span bytes);
    // The device writes there: what changes is no touch of the host.
    void written(const Use& use);
    // Memory goes back to its owner, who waits for the device, or becomes other memory. A handler that interrupted us may
    // say so, or an allocator of the program that we have called.
    void forget(Span bytes);
    void forget_context(const void* context);

    bool idle() const { return waiting_.load(std::memory_order_relaxed) == 0; }

    // Calls `found(use, bytes, what)` for all of which it was observed that they are over. Threads wait for one another:
    // none goes back to the program, and may change the bytes, while another compares them.
    template <typename Report>
    void compare(Report found) {
        if (idle()) {
            return;
        }
        const std::lock_guard held(lock_);
        drop_what_is_doubtful();
        std::erase_if(entries_, [&](const Entry& each) {
            const bool over = each.use.finished() && each.use.observed();
            if (over) {
                const Found what = look(each);  // meanwhile, too, a handler may forget
                if (!doubtful_.load(std::memory_order_relaxed)) {
                    found(each.use, each.bytes, what);
                }
            }
            return over;
        });
        forget_written();
        waiting_.store(entries_.size(), std::memory_order_relaxed);
    }

  private:
    static constexpr std::size_t kEntriesMax = 1024;
    struct Entry {
        Use use;
        Span bytes;
        std::uint64_t digest = 0;
    };
    Found look(const Entry& entry);
    Found read(Span bytes, std::uint64_t& digest);
    void forget_written();

    // Behind what was forgotten while we had the lock: nobody knows which entries it met.
    void drop_what_is_doubtful() {
        if (doubtful_.exchange(false, std::memory_order_relaxed)) {
            entries_.clear();
        }
    }

    OwnedLock lock_;
    std::atomic<bool> doubtful_{false};
    std::vector<Entry> entries_;
    std::vector<Use> written_;
    std::array<std::uint64_t, 2048> block_{};  // what is read at once: a thread's stack may have no room for it
    std::atomic<std::size_t> waiting_{0};      // entries, for who looks without the lock
};

}  // namespace hostrace
