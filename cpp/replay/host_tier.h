// A host tier beside the block manager, as a replay sees it. trtllm_kvfix.tools.replay.host_tier defines its terms.
#pragma once

#include <cstdint>
#include <span>

#include "core/types.h"
#include "replay/generating.h"
#include "replay/tally.h"

namespace kvfix::replay {

class HostTier {
  public:
    HostTier() = default;
    HostTier(const HostTier&) = delete;
    HostTier& operator=(const HostTier&) = delete;
    virtual ~HostTier() = default;

    virtual Found find(RequestId index, std::int64_t tokens_found) = 0;
    // Returns true if, until the next call, it need not see sequences that have filled no block since, nor iterations
    // without any others.
    virtual bool step(std::span<const Computed> running) = 0;
    virtual void finish(std::span<const Computed> ended) = 0;
};

}  // namespace kvfix::replay
