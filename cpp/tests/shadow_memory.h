// The contents of the slots, as if the copies were run. Each cell stands for one token and spells the whole prefix up
// to it, so that a wrong byte anywhere shows as a wrong cell. Copies read their source when they are taken, in order,
// and write their destination when they end: as late as the contract allows.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "core/block_manager.h"

namespace kvfix::testing {

class BrokenPromise : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

inline void promise(bool kept, const std::string& what) {
    if (!kept) {
        throw BrokenPromise(what);
    }
}

using Cell = std::uint64_t;
// The result of a computation on bytes that never arrived.
inline constexpr Cell kSpoiled = 3;

struct Place {
    std::size_t window;
    Tier tier;
    SlotIndex slot;
    auto operator<=>(const Place&) const = default;
};

std::string name(const Place& place);

class ShadowMemory {
  public:
    explicit ShadowMemory(const BlockManagerConfig& config);

    std::size_t window_index(WindowSize size) const;
    Cell cell(const Place& place, std::uint32_t offset) { return slot(place).at(offset).content; }
    void write(const Place& place, std::uint32_t offset, Cell content, RequestId writer) {
        slot(place).at(offset) = {content, writer};
    }
    // A request has learned that something it read was missing. Everything that it has computed is worthless, wherever
    // it is now.
    void spoil(RequestId writer);
    bool in_flight(const Place& place) const { return flying_.contains(place); }
    // The ticket of a copy that has not ended and will write this cell.
    std::optional<Ticket> bringing(const Place& place, std::uint32_t offset) const;

    void take(const TransferBatch& batch);
    void complete(Ticket ticket);
    void fail(Ticket ticket);

    // A pin of an immutable block promises its bytes too.
    void pin(const Place& place, BlockId id, bool immutable);
    void unpin(const Place& place);
    // Checks that a pin's slot still belongs to the pinned block. Otherwise another owner would get pinned bytes.
    void check_owner(const Place& place, BlockId id) const;

  private:
    struct Written {
        Cell content = 0;
        RequestId writer = 0;
        bool operator==(const Written&) const = default;
    };
    using Slot = std::vector<Written>;
    struct Copy {
        Place source;
        Place destination;
        Slot cells;
    };
    struct Pin {
        BlockId id;
        std::uint32_t count;
        Slot promised;  // empty unless immutable
    };
    Slot& slot(const Place& place);

    std::uint32_t tokens_per_block_;
    std::vector<WindowSize> windows_;
    std::vector<std::array<std::vector<Slot>, kTiers>> slots_;  // [window][tier][slot]
    std::map<Ticket, std::vector<Copy>> copies_;
    std::set<Place> flying_;
    std::map<Place, Pin> pins_;
};

}  // namespace kvfix::testing
