// Events from which a remote router learns what this cache holds. The log is bounded: if nobody reads it, the oldest
// events are dropped and counted.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "core/block_hash.h"
#include "core/request.h"
#include "core/set_digest.h"
#include "core/types.h"

namespace kvfix {

enum class EventKind : std::uint8_t { stored, removed, updated };

struct BlockEvent {
    EventKind kind;
    std::uint64_t event_id = 0;  // counts up; a gap shows that events were dropped
    BlockHash block_hash;
    std::optional<BlockHash> parent_hash;  // unset below a root
    std::vector<TokenId> tokens;           // stored events only
    // Stored events only: the rest of what identifies the block.
    std::optional<std::int64_t> lora_id;
    Salt salt;
    std::vector<BlockExtra> extra_keys;
    std::uint32_t tokens_per_block = 0;  // all events
    Tier tier = Tier::primary;
    Priority priority = kPriorityDefault;
    WindowSize window_size;

    std::uint64_t digest() const {
        return digest_of_words(kind, event_id, block_hash.first, parent_hash.value_or(BlockHash{}).first, tier,
                               priority);
    }
};

class EventLog {
  public:
    explicit EventLog(std::uint32_t events_max) : events_max_(events_max) {}

    // Building an event costs time, so callers ask first.
    bool wanted() const { return events_max_ != 0; }
    std::uint64_t dropped() const { return dropped_; }

    void record(BlockEvent event) {
        event.event_id = next_id_++;
        if (events_.size() == events_max_) {
            digest_.remove(events_.front().digest());
            events_.pop_front();
            ++dropped_;
        }
        digest_.add(event.digest());
        events_.push_back(std::move(event));
    }
    // The events that wait. The caller copies them after it has released the manager's lock, because there may be many.
    std::deque<BlockEvent> drain() {
        digest_.clear();
        return std::exchange(events_, {});
    }
    std::uint64_t digest() const { return digest_of_words(dropped_, next_id_, digest_.value()); }

  private:
    std::uint32_t events_max_;
    std::uint64_t next_id_ = 0;
    std::uint64_t dropped_ = 0;
    std::deque<BlockEvent> events_;
    SetDigest digest_;
};

}  // namespace kvfix
