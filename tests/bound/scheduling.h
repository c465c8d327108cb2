// Which requests run next: first by capacity in blocks, then by tokens in one batch. Only the books are asked.
#pragma once

#include <functional>

#include "books.h"

namespace bound {

enum class CapacityPolicy { MAX_UTILIZATION, GUARANTEED_NO_EVICT, STATIC_BATCH };
enum class ChunkingPolicy { EQUAL_PROGRESS, FIRST_COME_FIRST_SERVED };

struct Chunking {
    ChunkingPolicy policy = ChunkingPolicy::FIRST_COME_FIRST_SERVED;
    int unit = 1;
};

// The states between which a request concerns the scheduler.
struct Stretch {
    State from = State::CONTEXT_INIT;
    State until = State::GENERATION_COMPLETE;

    bool covers(const Request& request) const {
        return request.state == State::DISAGG_GENERATION_INIT || (request.state >= from && request.state < until);
    }
};

// Places in the list of active requests.
using Places = std::vector<std::size_t>;

struct Capacity {
    Places fitting;
    Places generation_init;
    Places paused;
};

struct CapacityScheduler {
    int max_num_requests = 0;
    CapacityPolicy policy = CapacityPolicy::GUARANTEED_NO_EVICT;
    bool has_kv_cache_manager = true;
    bool two_step_lookahead = false;
    Stretch stretch;

    Capacity schedule(const std::vector<Request*>& active, Books* books, Books* cross) const;

  private:
    Capacity without_cache(const std::vector<Request*>& active) const;
    Capacity no_evict(const std::vector<Request*>& active, const std::vector<Books*>& books) const;
    Capacity max_utilization(const std::vector<Request*>& active, Books& books) const;
};

struct MicroBatchScheduler {
    std::optional<Chunking> chunking;
    std::optional<int> max_context_length;
    Stretch stretch;

    // Returns contexts and generations, and sets the chunk sizes of the contexts.
    std::pair<Places, Places> schedule(const std::vector<Request*>& active, const std::set<RequestId>& in_flight,
                                       int max_batch_size, std::optional<int> max_num_tokens) const;

  private:
    int cost(const Request& request, int chunk) const;
    void set_chunks(const std::vector<Request*>& contexts, std::optional<int> budget) const;
};

}  // namespace bound
