// Pins that end themselves. A handle may outlive its manager, and may be released twice or by two threads at once: each
// pin ends once.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/results.h"
#include "process/home_process.h"

namespace kvfix {

class BlockManager;

// State that a manager and its handles share; it outlives them all.
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
    // Releases like end().
    ~Pins() { end(); }

    // Does nothing if the pins were released before or the manager is gone. Throws std::invalid_argument if someone
    // else has unpinned one of the blocks; then the others stay pinned too.
    void release();
    bool released() const;
    // Releases the pins and forgets the manager. It does not complain if the blocks have been unpinned by their ids, or
    // in a child after fork(). The handle is of no use afterwards.
    void end() noexcept;
    // The pins as they were made.
    std::span<const HeldPin> held() const { return held_; }

  private:
    const HomeProcess home_;
    std::shared_ptr<PinAnchor> anchor_;
    std::vector<HeldPin> held_;
    bool released_ = false;  // guarded by the anchor's mutex
};

}  // namespace kvfix
