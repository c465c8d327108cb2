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
        Use use = made(side);
        // On a stack that is pinned, a page of it may be the next in which a handler of ours would have to start.
        const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
        const bool protects = why_nothing_is_protected() == nullptr && !(range.begin <= here && here < range.end) &&
                              !watch_.left_alone.meets(pages_around({use.shape.begin, use.shape.end()}));
        use.whole = protects ? range.whole() : Span{};
        use.registered = range.registered;
        use.pinned = range.stack;
        if (!side.certain) {
            use.shape.width = std::min(range.end - side.shape.begin, kKernelBytesMax);
            count(watch_.counts.trimmed, use.shape.end() < range.end ? 1 : 0);
        }
        static_cast<void>(watch_.guard.add(use));
        if (range.registered || !protects) {
            static_cast<void>(compare_beside(use));
        }
    }
    // Memory that nobody pinned is not protected: the program may unmap it, or run on it, when the call has returned.
    void add_pageable(const Side& side) {
        if (!side.shape.empty() && marked()) {
            Use use = made(side);
            use.whole = {};
            count(watch_.counts.guarded, compare_beside(use));
        }
    }

  private:
    static constexpr std::size_t kKernelBytesMax = std::size_t{64} << 20;
    static constexpr std::size_t kComparedBytesMax = kKernelBytesMax;

    Use made(const Side& side) const {
        Use use;
        static_cast<Side&>(use) = side;
        use.ends = mark_;
        use.begins = place_.begins;
        use.seen = watch_.by_order ? place_.seen : nullptr;
        use.order = place_.order;
        use.stack = stack_;
        use.thread = self().id;
        use.context = key_.context;
        use.stream = reinterpret_cast<std::uintptr_t>(key_.stream);
        use.since_ns = since_ns_;
        return use;
    }

    // What its pages do not cover. A touch before the use begins would be none, and order has to be known.
    std::uint64_t compare_beside(const Use& use) {
        if (use.device_writes) {
            watch_.digests.written(use);
            return 0;
        }
        if (use.seen == nullptr || use.begins.flag != nullptr || use.shape.rows * use.shape.slices != 1) {
            return 0;
        }
        const Span bytes{use.shape.begin, use.shape.end()};
        const Span covered = use.pages();
        const std::uintptr_t head = std::clamp(covered.begin, bytes.begin, bytes.end);
        const std::uintptr_t tail = std::clamp(covered.end, head, bytes.end);
        std::uint64_t taken = 0;
        for (const Span part : {Span{bytes.begin, head}, Span{tail, bytes.end}}) {
            const Span read{part.begin, std::min(part.end, part.begin + kComparedBytesMax)};
            taken += !read.empty() && watch_.digests.add(use, read) ? 1 : 0;
        }
        count(watch_.counts.digested, taken);
        return taken;
    }

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
