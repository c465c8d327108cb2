// The counts that a replay adds up as it runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/results.h"

namespace kvfix::replay {

// The part of a prompt that a host tier beside the manager adds to the part on the GPU.
struct Found {
    std::int64_t tokens = 0;
    std::int64_t blocks = 0;
    std::int64_t blocks_remote = 0;  // those of them from the store behind it
};

// Prompt tokens, or prompt blocks.
struct Reuse {
    std::int64_t reused = 0;
    std::int64_t host = 0;    // part of reused
    std::int64_t remote = 0;  // part of host
    std::int64_t computed = 0;
};

struct Tally {
    std::int64_t iterations = 0;
    std::int64_t finished = 0;
    std::int64_t iterations_admitting = 0;
    std::int64_t deferred = 0;
    std::int64_t overshoots = 0;
    std::int64_t tokens_over = 0;
    std::int64_t tokens_over_max = 0;
    std::int64_t promises = 0;
    std::int64_t promises_broken = 0;
    std::int64_t tokens_short = 0;
    Reuse tokens;
    Reuse blocks;

    // Counts one iteration's admissions. The promises belong to the first admissions, in the same order.
    void count_admissions(std::int64_t budget, std::span<const std::int64_t> tokens_promised,
                          std::span<const Admission> admitted) {
        iterations_admitting += admitted.empty() ? 0 : 1;
        deferred += static_cast<std::int64_t>(tokens_promised.size() - admitted.size());
        std::int64_t over = -budget;
        for (std::size_t i = 0; i < admitted.size(); ++i) {
            over += static_cast<std::int64_t>(admitted[i].tokens_new);
            count_admission(tokens_promised[i], admitted[i]);
        }
        if (over > 0) {
            ++overshoots;
            tokens_over += over;
            tokens_over_max = std::max(tokens_over_max, over);
        }
    }

    // Counts what a load brought for a prompt that was counted as admitted. A block of which the GPU had a part already
    // counts as reused.
    void count_load(std::int64_t tokens_found, std::int64_t tokens_per_block, const Found& found) {
        const std::int64_t blocks_new = found.blocks - (found.blocks != 0 && tokens_found % tokens_per_block != 0);
        tokens.reused += found.tokens;
        tokens.host += found.tokens;
        tokens.remote += std::min(found.blocks_remote * tokens_per_block, found.tokens);
        tokens.computed -= found.tokens;
        blocks.reused += blocks_new;
        blocks.host += found.blocks;
        blocks.remote += found.blocks_remote;
        blocks.computed -= blocks_new;
    }

    // Counts the tokens that the manager's own host tier gives back.
    void count_transfers(std::span<const TransferItem> items) {
        for (const TransferItem& item : items) {
            tokens.host += item.kind == TransferKind::onboard ? item.tokens : 0;
        }
    }

  private:
    void count_admission(std::int64_t promised, const Admission& admission) {
        const auto given = static_cast<std::int64_t>(admission.tokens_reused);
        ++promises;
        promises_broken += given != promised ? 1 : 0;
        tokens_short += std::max<std::int64_t>(promised - given, 0);
        tokens.reused += given;
        tokens.computed += static_cast<std::int64_t>(admission.tokens_new);
        blocks.reused += static_cast<std::int64_t>(admission.blocks_reused);
        blocks.host += static_cast<std::int64_t>(admission.blocks_onboarded);
        blocks.computed += static_cast<std::int64_t>(admission.blocks_new);
    }
};

}  // namespace kvfix::replay
