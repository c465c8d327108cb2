// What the program has observed to be over, whichever of its threads did: a clock for each stream. The device may be past
// a use by chance; a touch is ordered behind it only where the program waited for something that comes after it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hostrace/driver.h"
#include "hostrace/streams.h"
#include "hostrace/use.h"

namespace hostrace {

class Order {
  public:
    explicit Order(const Driver& driver) : driver_(driver) {}
    Order(const Order&) = delete;
    Order& operator=(const Order&) = delete;

    struct Place {
        const Seen* seen = nullptr;
        std::uint64_t order = 0;
        Mark begins;
    };
    // Where a use stands that was enqueued just now.
    Place enqueued(const StreamKey& key) {
        const std::lock_guard held(mutex_);
        Stream* stream = find(key);
        if (stream == nullptr) {
            return {};
        }
        const Place place{&seen_[stream->id], ++now_, barrier_of(*stream)};
        if (stream->legacy) {
            worked(key.context);
        }
        return place;
    }
    // Work on the legacy stream of the context: it orders the blocking streams before it against those behind it.
    void worked(const void* context) {
        worked_[group_of(context)].store(now_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    }

    // Nothing is recorded in it yet: who waits for it has waited for nothing.
    void created(cuda::Handle event) {
        const std::lock_guard held(mutex_);
        events_[event] = {};
    }
    void record(cuda::Handle event, const StreamKey& key) {
        const std::lock_guard held(mutex_);
        if (const Stream* stream = find(key)) {
            if (stream->legacy) {
                worked(key.context);
            }
            events_[event] = {clock_of(*stream), barrier_of(*stream)};
        }
    }
    // What was recorded in it is not known any longer: who waits for it may have observed everything.
    void forget_event(cuda::Handle event) {
        const std::lock_guard held(mutex_);
        events_.erase(event);
    }
    // The stream waits for the event. True where it is not known yet that the event's stream may go on: the host must
    // do something first.
    bool wait(const StreamKey& key, cuda::Handle event) {
        const std::lock_guard held(mutex_);
        const auto found = events_.find(event);
        Stream* stream = found == events_.end() ? nullptr : find(key);
        if (stream == nullptr) {
            return false;
        }
        join(stream->joined, found->second.clock);
        return !found->second.barrier.passed();
    }
    // What is enqueued from now on does not begin before the host has done something; the mark stands behind that.
    void waits_for_host(const StreamKey& key, const Mark& mark) {
        const std::lock_guard held(mutex_);
        if (Stream* stream = mark.flag == nullptr ? nullptr : find(key)) {
            stream->barrier = mark;
        }
    }

    void observe_stream(const StreamKey& key) { see_stream(key, &Seen::by_host); }
    // Perhaps somebody polls what the stream writes.
    void perhaps_observed(const StreamKey& key) { see_stream(key, &Seen::perhaps); }
    void observe_event(cuda::Handle event) {
        const std::lock_guard held(mutex_);
        if (const auto found = events_.find(event); found != events_.end()) {
            see(found->second.clock, &Seen::by_host);
        } else {
            see_all(nullptr);
        }
    }
    // Null for all of them.
    void observe_context(const void* context) {
        const std::lock_guard held(mutex_);
        see_all(context);
    }
    // The program has means of order that are not known here: from now on nothing is certain.
    void lose_track() {
        for (Seen& seen : seen_) {
            seen.perhaps.store(std::numeric_limits<std::uint64_t>::max(), std::memory_order_relaxed);
        }
    }

    void forget_stream(const void* context, cuda::Handle stream) {
        const std::lock_guard held(mutex_);
        std::erase_if(streams_, [&](const auto& each) {
            const bool gone = each.first.first == std::pair<const void*, cuda::Handle>{context, stream};
            if (gone && each.second.blocking) {
                join(left_[each.second.group], each.second.joined);
            }
            return gone;
        });
    }
    void forget_thread(int thread) {
        const std::lock_guard held(mutex_);
        std::erase_if(streams_, [&](const auto& each) { return each.first.second == thread; });
    }
    void forget_context(const void* context) {
        const std::lock_guard held(mutex_);
        std::erase_if(streams_,
                      [&](const auto& each) { return context == nullptr || each.first.first.first == context; });
    }

  private:
    static constexpr std::size_t kStreamsMax = 2048;  // one more shares the place of an old one: it is seen with it
    static constexpr std::size_t kGroupsMax = 16;
    static constexpr std::uint32_t kGroup = 1U << 31U;

    // Up to which number the uses of each stream are over: streams by their place, all blocking streams of a context by
    // kGroup and the number of the context.
    using Clock = std::vector<std::pair<std::uint32_t, std::uint64_t>>;
    using Member = std::atomic<std::uint64_t> Seen::*;
    struct Stream {
        std::uint32_t id = 0;
        std::uint32_t group = 0;
        bool legacy = false;
        bool blocking = false;
        Mark barrier;
        Clock joined;  // of what it waited for
    };
    struct Event {
        Clock clock;
        Mark barrier;
    };
    struct Known {
        const void* context = nullptr;
        bool blocking = false;
    };
    using Key = std::pair<std::pair<const void*, cuda::Handle>, int>;

    Stream* find(const StreamKey& key) {
        const Key name{{key.context, key.stream}, key.thread};
        if (const auto found = streams_.find(name); found != streams_.end()) {
            return &found->second;
        }
        Stream stream;
        stream.legacy = key.stream == nullptr;
        unsigned flags = 0;
        const bool own = reinterpret_cast<std::uintptr_t>(key.stream) > cuda::kThreadStream;
        if (own && driver_.stream_flags != nullptr) {
            int capturing = 0;
            if (driver_.is_capturing(key.stream, &capturing) != cuda::kSuccess || capturing != 0) {
                return nullptr;  // the driver is asked for nothing on a stream that is captured
            }
            static_cast<void>(driver_.stream_flags(key.stream, &flags));
        }
        stream.blocking = (flags & cuda::kStreamNonBlocking) == 0;
        stream.group = group_of(key.context);
        stream.id = next_++ % kStreamsMax;
        known_[stream.id] = {key.context, stream.blocking};
        return &(streams_[name] = stream);
    }

    std::uint32_t group_of(const void* context) {
        for (std::uint32_t at = 0; at + 1 < kGroupsMax; ++at) {
            const void* there = nullptr;
            if (groups_[at].compare_exchange_strong(there, context) || there == context) {
                return at;
            }
        }
        return kGroupsMax - 1;
    }

    // Of a stream, with what the legacy stream does to the blocking streams of its context.
    template <typename Visit>
    void with_group(const Stream& stream, Visit visit) const {
        for (const auto& [key, other] : streams_) {
            if (stream.blocking && other.blocking && other.group == stream.group && &other != &stream &&
                (stream.legacy || other.legacy)) {
                visit(other);
            }
        }
    }
    Mark barrier_of(const Stream& stream) const {
        Mark found = stream.barrier;
        with_group(stream, [&](const Stream& other) { found = found.passed() ? other.barrier : found; });
        return found.passed() ? Mark{} : found;
    }
    Clock clock_of(const Stream& stream) const {
        Clock clock{{stream.id, now_}};
        join(clock, stream.joined);
        if (stream.blocking) {
            const std::uint64_t until = stream.legacy ? now_.load() : worked_[stream.group].load();
            join(clock, {{kGroup | stream.group, until}});
            with_group(stream, [&](const Stream& other) { join(clock, other.joined); });
            join(clock, left_[stream.group]);
        }
        return clock;
    }

    void join(Clock& into, const Clock& from) const {
        std::erase_if(into, [&](const auto& each) { return known_to_all(each); });
        for (const auto& each : from) {
            const auto same =
                std::find_if(into.begin(), into.end(), [&](const auto& it) { return it.first == each.first; });
            if (same != into.end()) {
                same->second = std::max(same->second, each.second);
            } else if (!known_to_all(each)) {
                into.push_back(each);
            }
        }
    }
    bool known_to_all(const std::pair<std::uint32_t, std::uint64_t>& entry) const {
        return (entry.first & kGroup) == 0 &&
               entry.second <= seen_[entry.first].by_host.load(std::memory_order_relaxed);
    }

    void see_stream(const StreamKey& key, Member member) {
        const std::lock_guard held(mutex_);
        if (const Stream* stream = find(key)) {
            see(clock_of(*stream), member);
        }
    }
    void see(const Clock& clock, Member member) {
        for (const auto& [id, until] : clock) {
            if ((id & kGroup) == 0) {
                raise(seen_[id].*member, until);
                continue;
            }
            for (std::size_t at = 0; at < kStreamsMax; ++at) {
                if (known_[at].blocking && known_[at].context != nullptr &&
                    group_of(known_[at].context) == (id & ~kGroup)) {
                    raise(seen_[at].*member, until);
                }
            }
        }
    }
    void see_all(const void* context) {
        for (std::size_t at = 0; at < kStreamsMax; ++at) {
            if (context == nullptr || known_[at].context == context) {
                raise(seen_[at].by_host, now_);
            }
        }
    }
    static void raise(std::atomic<std::uint64_t>& what, std::uint64_t to) {
        std::uint64_t was = what.load(std::memory_order_relaxed);
        while (was < to && !what.compare_exchange_weak(was, to, std::memory_order_release)) {
        }
    }

    const Driver& driver_;
    std::mutex mutex_;
    std::atomic<std::uint64_t> now_{0};
    std::uint32_t next_ = 0;
    std::map<Key, Stream> streams_;
    std::unordered_map<cuda::Handle, Event> events_;
    std::array<Known, kStreamsMax> known_{};
    std::array<Seen, kStreamsMax> seen_{};
    std::array<std::atomic<const void*>, kGroupsMax> groups_{};
    std::array<std::atomic<std::uint64_t>, kGroupsMax> worked_{};
    // What blocking streams waited for that were destroyed since: their work may still be on its way.
    std::array<Clock, kGroupsMax> left_;
};

}  // namespace hostrace
