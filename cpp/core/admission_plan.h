// Phase one of admission: who reuses what, decided for the whole batch before anything changes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/config.h"
#include "core/request.h"
#include "core/window_pool.h"

namespace kvfix {

// How a request gets the first tokens of a block whose rest it computes itself.
enum class PartialWay : std::uint8_t { none, take_over, copy };

struct WindowMatch {
    std::uint32_t path_begin = 0;   // into AdmissionPlan::path
    std::uint32_t path_length = 0;  // matched full blocks; the plan claims the first `full` of them
    std::uint32_t hold_begin = 0;   // blocks before it lie outside the window: matched, not held
    BlockIndex source = kNone;
    PartialWay way = PartialWay::none;
    // The match (into AdmissionPlan::matches) of the earlier request that takes this source over: its new block has the bytes.
    std::uint32_t taken_by = kNone;
    BlockIndex taken = kNone;  // by this match, once applied
};

struct RequestPlan {
    const Request* request;         // the caller keeps it alive
    std::uint32_t reuse = 0;        // tokens
    std::uint32_t full = 0;         // whole blocks of them, in every window
    std::uint32_t match_begin = 0;  // into AdmissionPlan::matches, one per window

    std::uint32_t tokens_new() const { return request->num_tokens() - reuse; }
    // Blocks that get the reused part of a block: one per beam when it is the prompt's last, incomplete one.
    std::uint32_t partial_copies(std::uint32_t tokens_per_block) const {
        const bool last_incomplete = full == request->num_tokens() / tokens_per_block;
        return last_incomplete ? request->beam_width : 1;
    }
};

class AdmissionPlan {
  public:
    using Pools = std::span<const std::unique_ptr<WindowPool>>;

    // Reads the pools; writes nothing but the blocks' scratch marks.
    void make(Pools pools, const BlockManagerConfig& config, std::span<const RequestPtr> requests);

    // Requests admitted in order under the budget, after copies that have no room were given up. Throws OutOfBlocks where
    // they cannot be served without any.
    std::size_t fit(Pools pools, std::optional<std::uint64_t> tokens_new_max);
    // The same for the first `count` requests, without a budget. False instead of OutOfBlocks.
    bool try_fit(Pools pools, std::size_t count);

    std::span<const RequestPlan> requests() const { return requests_; }
    const WindowMatch& match(const RequestPlan& plan, std::size_t window) const {
        return matches_[plan.match_begin + window];
    }
    void set_taken(const RequestPlan& plan, std::size_t window, BlockIndex block) {
        matches_[plan.match_begin + window].taken = block;
    }
    // Where the bytes of a copy's source are, once all takeovers of earlier requests have been applied.
    BlockIndex source_now(const WindowMatch& match) const {
        return match.taken_by == kNone ? match.source : matches_[match.taken_by].taken;
    }
    // The blocks that the request claims in a window, held or not.
    std::span<const BlockIndex> claims(const RequestPlan& plan, std::size_t window) const {
        return std::span(path_).subspan(match(plan, window).path_begin, plan.full);
    }
    std::span<const BlockIndex> held_claims(const RequestPlan& plan, std::size_t window) const {
        return claims(plan, window).subspan(std::min(plan.full, match(plan, window).hold_begin));
    }
    // Blocks of the prompt per beam that a window must allocate beyond claims and partial reuse.
    static std::uint64_t blocks_new(const RequestPlan& plan, const WindowMatch& match, std::uint32_t tokens_per_block);

  private:
    void begin_marking(Pools pools);
    void match_request(Pools pools, const Request& request);
    std::uint32_t match_window(const WindowPool& pool, const Request& request, WindowMatch& match);
    void walk(const WindowPool& pool, const Request& request, ParentRef root);
    std::uint32_t longest_partial(const WindowPool& pool, const Request& request, ParentRef root, WindowMatch& match);
    void mark_claims(Pools pools, const RequestPlan& plan);
    void settle_partial(Pools pools, RequestPlan& plan);
    std::uint32_t taker_of(BlockIndex source, std::size_t window) const;
    PartialWay way_of(const WindowPool& pool, const RequestPlan& plan, BlockIndex source) const;
    void set_reuse(Pools pools, RequestPlan& plan, std::uint32_t reuse);
    std::size_t within_budget(std::optional<std::uint64_t> tokens_new_max) const;
    bool may_be_short(Pools pools, std::size_t count) const;
    struct Room {
        std::uint64_t needed = 0;
        std::uint64_t free = 0;
    };
    Room room_without_copies(WindowPool& pool, std::size_t window, std::size_t count);
    void keep_copies(Pools pools, RequestPlan& plan);
    bool locks_evictable(const WindowPool& pool, const WindowMatch& match) const;
    void give_up_partial(Pools pools, RequestPlan& plan);

    const BlockManagerConfig* config_ = nullptr;
    std::uint32_t serial_ = 0;  // marks of this plan; marks of older plans are smaller
    std::vector<RequestPlan> requests_;
    std::vector<WindowMatch> matches_;
    std::vector<BlockIndex> path_;
    std::vector<Room> rooms_;                         // per window, of the last try_fit() that looked closely
    std::vector<std::vector<std::uint32_t>> takers_;  // [window][block]: the match that takes it over
};

}  // namespace kvfix
