// What one call of the program has enqueued, turned into uses of pinned memory.
#pragma once

#include <algorithm>

#include "hostrace/order.h"
#include "hostrace/ranges.h"
#include "hostrace/streams.h"
#include "hostrace/thread.h"
#include "hostrace/watcher.h"

namespace hostrace {

class Enqueued {
  public:
    Enqueued(Watcher& watch, Streams& streams, Order& order, const Ranges& ranges, const StreamKey& key)
        : watch_(watch), streams_(streams), order_(order), ranges_(ranges), key_(key) {}

    // Nothing happens where the memory is not pinned.
    void add(const Side& side) {
        const Range range = side.shape.empty() ? Range{} : ranges_.find(side.shape.begin);
        if (range.empty() || !marked()) {
            return;
        }
        const auto stream = reinterpret_cast<std::uintptr_t>(key_.stream);
        Use use;
        static_cast<Side&>(use) = side;
        use.whole = range.whole();
        use.ends = mark_;
        use.begins = place_.begins;
        use.seen = watch_.by_order ? place_.seen : nullptr;
        use.order = place_.order;
        use.stack = stack_;
        use.pinned = range.stack;
        use.thread = self().id;
        use.context = key_.context;
        use.stream = stream;
        use.since_ns = since_ns_;
        if (!side.certain) {
            use.shape.width = std::min(range.end - side.shape.begin, kKernelBytesMax);
            count(watch_.counts.trimmed, use.shape.end() < range.end ? 1 : 0);
        }
        static_cast<void>(watch_.guard.add(use));
    }

  private:
    static constexpr std::size_t kKernelBytesMax = std::size_t{64} << 20;

    // For the first use the stream is asked to say when it is past it, and the program where it is.
    bool marked() {
        if (since_ns_ == 0) {
            since_ns_ = now_ns();
            mark_ = streams_.mark(key_);
            if (mark_.flag != nullptr) {
                place_ = order_.enqueued(key_);
                stack_ = watch_.stacks.take();
            } else if (!streams_.capturing(key_.stream)) {
                count(watch_.counts.unwatched_streams);
            }
        }
        return mark_.flag != nullptr;
    }

    Watcher& watch_;
    Streams& streams_;
    Order& order_;
    const Ranges& ranges_;
    StreamKey key_;
    Mark mark_;
    Order::Place place_;
    std::uint32_t stack_ = 0;
    std::uint64_t since_ns_ = 0;
};

}  // namespace hostrace
