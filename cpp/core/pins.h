// Pins that end themselves. A handle may outlive its manager, be released twice or by two threads at once: each pin ends once.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/home_process.h"
#include "core/results.h"

namespace kvfix {

class BlockManager;

// What a manager and its handles share; it outlives them all.
struct PinAnchor {
    std::mutex mutex;  // taken before the manager's
    BlockManager* manager = nullptr;
};

class Pins {
  public:
    Pins(std::shared_ptr<PinAnchor> anchor, std::vector<HeldPin> held)
        : anchor_(std::move(anchor)), held_(std::move(held)) {}
    Pins(Pins&& other) noexcept;
    Pins& operator=(Pins&&) = delete;
    Pins(const Pins&) = delete;
    Pins& operator=(const Pins&) = delete;
    // As end().
    ~Pins() { end(); }

    // Nothing where it was done before, or the manager has gone. Throws std::invalid_argument where somebody else has unpinned one of
    // the blocks: then none of the rest is unpinned either.
    void release();
    bool released() const;
    // Releases and lets the manager go; does not complain if the blocks have been unpinned by their ids, or in a child after
    // fork(). The handle is of no use afterwards.
    void end() noexcept;
    // As they were pinned.
    std::span<const HeldPin> held() const { return held_; }

  private:
    const HomeProcess home_;
    std::shared_ptr<PinAnchor> anchor_;
    std::vector<HeldPin> held_;
    bool released_ = false;  // under the anchor's mutex
};

}  // namespace kvfix
