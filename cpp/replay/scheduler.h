// A small, explicit scheduler in front of a real block manager; docs/replay.md describes the model. One iteration
// admits waiting requests within the token budget, grows the answers, runs the transfers that both asked for, computes
// prompts, and removes what is finished. Nothing here looks at a clock. Only one thread may use it at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/block_manager.h"
#include "core/types.h"
#include "replay/generating.h"
#include "replay/host_tier.h"
#include "replay/requests.h"
#include "replay/tally.h"

namespace kvfix::replay {

struct Shape {
    std::int64_t blocks_primary;
    std::int64_t max_batch_size;
    std::int64_t max_num_tokens;
    std::int64_t tokens_per_iteration;
    double iteration_ms;
    bool is_one_by_one;
};

class Scheduler {
  public:
    // waiting: indices, in the order in which the requests are offered.
    Scheduler(BlockManager& manager, const Requests& requests, const Shape& shape, std::vector<RequestId> waiting)
        : manager_(manager),
          requests_(requests),
          shape_(shape),
          waiting_(std::move(waiting)),
          generating_(requests, manager.config().tokens_per_block, shape.tokens_per_iteration) {}

    // Runs iterations until requests have ended, at most `iterations_max`. Returns false once no request waits or runs.
    // The tier, which may be null, must be the same in every call. What it throws passes through and ends the replay.
    bool advance(std::int64_t iterations_max, HostTier* tier);
    const Tally& tally() const { return tally_; }
    const Shape& shape() const { return shape_; }
    // The number of requests that waited at construction.
    std::size_t requests() const { return waiting_.size(); }

  private:
    // Waiting requests, with the reuse that the manager promises each at this moment.
    struct Offers {
        std::vector<RequestPtr> requests;
        std::vector<std::int64_t> tokens_promised;

        std::int64_t tokens_new(std::size_t at) const { return requests[at]->num_tokens() - tokens_promised[at]; }
    };
    // An admitted prompt that is not computed to its end yet.
    struct Prompt {
        RequestId index;
        std::uint32_t length;
        std::int64_t tokens_left;
        bool is_loading;  // until the next iteration
    };

    std::size_t active() const { return computing_.size() + generating_.size(); }
    bool is_waiting() const { return first_waiting_ < waiting_.size(); }
    bool has_room() const;
    void iterate(HostTier* tier);
    void pass_quiet_iterations(const HostTier* tier);
    void admit(std::int64_t budget, HostTier* tier);
    Offers offers(std::int64_t budget);
    const RequestPtr& built(RequestId index);
    std::vector<Admission> add_one_by_one(const Offers& offers, std::int64_t budget);
    Prompt begin(const Admission& admission, HostTier* tier);
    bool show_running(HostTier& tier);
    void run_transfers();
    void compute(std::int64_t budget);
    void let_go(HostTier* tier);

    BlockManager& manager_;
    const Requests& requests_;
    const Shape shape_;
    const std::vector<RequestId> waiting_;
    std::size_t first_waiting_ = 0;
    std::unordered_map<RequestId, RequestPtr> built_;  // requests that have been offered and still wait
    std::vector<Prompt> computing_;
    Generating generating_;
    std::int64_t blocks_reserved_ = 0;
    double now_ms_ = 0;
    bool tier_is_quiet_ = false;
    bool expects_onboards_ = false;
    Tally tally_;
};

}  // namespace kvfix::replay
