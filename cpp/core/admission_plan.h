// Phase one of admission: who reuses what, decided for the whole batch before anything changes. A plan is plain data, and is only read
// once it is made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/request.h"
#include "core/state.h"
#include "core/steps.h"

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

struct AdmissionPlan {
    std::vector<RequestPlan> requests;
    std::vector<WindowMatch> matches;
    std::vector<BlockIndex> path;

    const WindowMatch& match(const RequestPlan& plan, std::size_t window) const {
        KVFIX_STEP();
        return matches[plan.match_begin + window];
    }
    // The blocks that the request claims in a window, held or not.
    std::span<const BlockIndex> claims(const RequestPlan& plan, std::size_t window) const {
        return std::span(path).subspan(match(plan, window).path_begin, plan.full);
    }
    std::span<const BlockIndex> held_claims(const RequestPlan& plan, std::size_t window) const {
        return claims(plan, window).subspan(std::min(plan.full, match(plan, window).hold_begin));
    }
};

// Blocks of the prompt, over its beams, that a window must allocate beyond claims and partial reuse.
std::uint64_t blocks_new(const RequestPlan& plan, const WindowMatch& match, std::uint32_t tokens_per_block);

}  // namespace kvfix
