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

// The way in which a request gets the first tokens of a block whose rest it computes itself.
enum class PartialWay : std::uint8_t { none, take_over, copy };

// Blocks found in a row: full ones, and behind the last of them a block that begins as the prompt goes on.
struct Run {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    BlockIndex source = kNone;
    std::uint32_t tokens = 0;  // tokens that the source has of the block at `end`
    bool operator==(const Run&) const = default;
};

struct WindowMatch {
    std::uint32_t path_begin = 0;   // into AdmissionPlan::path
    std::uint32_t path_length = 0;  // full blocks up to the last one found; the plan claims the first `full` of them
    // Into AdmissionPlan::runs. The first begins the prompt, and may be empty; others follow in a window, where what lies between
    // has gone.
    std::uint32_t runs_begin = 0;
    std::uint32_t runs_end = 0;
    std::uint32_t hold_begin = 0;  // blocks before it lie outside the window: matched, not held
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
    // Positions that admission reserves: the reused ones and the first chunk.
    std::uint32_t length(std::uint32_t chunk_tokens) const { return reuse + std::min(tokens_new(), chunk_tokens); }
    // Blocks that get the reused part of a block: one per beam when it is the prompt's last, incomplete one.
    std::uint32_t partial_copies(std::uint32_t tokens_per_block) const {
        const bool last_incomplete = full == request->num_tokens() / tokens_per_block;
        return last_incomplete ? request->beam_width : 1;
    }
};

struct AdmissionPlan {
    std::uint32_t chunk_tokens = kNone;  // the whole prompt at once
    std::vector<RequestPlan> requests;
    std::vector<WindowMatch> matches;
    std::vector<BlockIndex> path;  // kNone between runs
    std::vector<Run> runs;

    const WindowMatch& match(const RequestPlan& plan, std::size_t window) const {
        KVFIX_STEP();
        return matches[plan.match_begin + window];
    }
    // The blocks that the request claims in a window, held or not; kNone where one has gone that none of the prompt will read.
    std::span<const BlockIndex> claims(const RequestPlan& plan, std::size_t window) const {
        return std::span(path).subspan(match(plan, window).path_begin, plan.full);
    }
    std::span<const BlockIndex> held_claims(const RequestPlan& plan, std::size_t window) const {
        return claims(plan, window).subspan(std::min(plan.full, match(plan, window).hold_begin));
    }
};

// Blocks of the first chunk, over its beams, that a window must allocate beyond claims and partial reuse.
std::uint64_t blocks_new(const AdmissionPlan& plan, const RequestPlan& request, const WindowMatch& match,
                         std::uint32_t tokens_per_block);

}  // namespace kvfix
