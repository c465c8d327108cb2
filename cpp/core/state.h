// Everything that a manager knows, as plain data. The verbs (admit, grow, store, pin, transfer, evict) are functions
// over it, each in a header of its own. BlockManager owns it and holds the lock around every verb.
#pragma once

#include <cstdint>
#include <utility>

#include "core/config.h"
#include "core/event_log.h"
#include "core/sequence.h"
#include "core/stats.h"
#include "core/transfer_ledger.h"
#include "core/window.h"

namespace kvfix {

struct State {
    // The caller has checked the configuration.
    explicit State(BlockManagerConfig checked_config)
        : config(std::move(checked_config)), events(config.events_max), windows(config) {}

    const BlockManagerConfig config;
    TransferLedger ledger;
    EventLog events;
    CacheCounters closed;     // counts of iterations that have ended
    CacheCounters iteration;  // the last one that ended
    CacheCounters current;
    Windows windows;
    SequenceTable sequences;
    std::int64_t now_ms = 0;
    std::uint64_t sequences_suspended = 0;
    std::uint32_t resets = 0;  // calls of reset_reuse_state() under way: meanwhile nothing is found, and nothing stored
    std::uint64_t mark = 0;    // the last call that took several ids; Sequence::mark compares

    std::uint32_t tokens_per_block() const { return config.tokens_per_block; }
    // Whether blocks are found and stored now.
    bool reuses() const { return config.block_reuse && resets == 0; }
};

inline BlockId id_of(const Window& window, BlockIndex block) { return BlockId{window.block_id_base + number(block)}; }

// Throws std::invalid_argument if the manager has no such window.
Window& window_of(State& state, WindowSize window_size);
const Window& window_of(const State& state, WindowSize window_size);

template <class WindowOf>
struct PlaceIn {
    WindowOf* window;
    BlockIndex block;
};
using BlockPlace = PlaceIn<Window>;
// Throws std::invalid_argument if the id holds nothing.
BlockPlace place_of(State& state, BlockId id);
PlaceIn<const Window> place_of(const State& state, BlockId id);

}  // namespace kvfix
