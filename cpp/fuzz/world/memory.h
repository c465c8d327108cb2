// The bytes of every slot, as if the copies were run. A cell stands for one token in one slot. Its value spells the
// whole prefix up to that token, so that a wrong byte anywhere before shows as a wrong cell.
//
// Copies run as badly as the contract allows. An offload is read when its ticket is taken, because its source belongs
// to the next owner at once. The source of an onboard or a copy is locked until the ticket ends, and is compared again
// then. The written bytes appear when the ticket ends; if they were lost, there is garbage.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "fuzz/world/port.h"
#include "fuzz/world/random.h"

namespace kvfix::world {

struct Place {
    std::size_t window = 0;
    Tier tier = Tier::primary;
    std::uint32_t slot = 0;
    auto operator<=>(const Place&) const = default;
};

std::string name(const Place& place);

struct Cell {
    std::uint64_t content = 0;
    std::uint32_t writer = 0;
    std::uint32_t position = 0;  // in the writer's sequence
    bool operator==(const Cell&) const = default;
};

// The result of a computation on bytes that never arrived.
inline constexpr std::uint64_t kSpoiled = 3;

struct Slot {
    std::vector<Cell> cells;
    bool flying = false;
    std::uint32_t flying_tokens = 0;  // leading cells that an outstanding transfer will write
    std::uint32_t locks = 0;          // outstanding onboards and copies that read it
    std::uint32_t pins = 0;
    BlockId pinned_id{};
    std::vector<Cell> pinned;  // the cells at the moment of the first pin
};

// A holder of a transfer's destination. If the transfer fails, it loses what it has from there on.
struct Holder {
    std::uint32_t writer;
    std::uint32_t position;
};

struct Flight {
    struct Copy {
        TransferKind kind;
        Place source;
        Place destination;
        BlockId block_id;
        std::vector<Cell> cells;
        bool source_held;  // by a live sequence, which may go on writing to it
    };
    std::vector<Copy> copies;
    std::vector<Holder> holders;
};

class Memory {
  public:
    explicit Memory(const BlockManagerConfig& config);

    std::size_t windows() const { return slots_.size(); }
    std::size_t window_of(WindowSize size) const;
    Slot& at(const Place& place);

    void write(const Place& place, std::uint32_t offset, const Cell& cell, BlockId block_id);
    // Everything that the writer computed from there on is worthless, wherever it is by now.
    void spoil(const Holder& holder);

    // `held` says whether a live sequence holds the place.
    template <class Held>
    void take(const TransferBatch& batch, std::vector<Holder> holders, const Held& held) {
        Flight& flight = flights_[batch.ticket];
        flight.holders = std::move(holders);
        for (const TransferItem& item : batch.items) {
            depart(flight, item);
            flight.copies.back().source_held = held(flight.copies.back().source);
        }
    }
    Place source_of(const TransferItem& item) const;
    Place destination_of(const TransferItem& item) const;
    const std::map<Ticket, Flight>& flights() const { return flights_; }
    // With `lost`, that number generator chooses what did not arrive, and nobody may rely on the rest.
    void land(Ticket ticket, Random* lost);

    // `immutable`: nobody may write to the place until the pin ends.
    void pin(const Place& place, BlockId id);
    void unpin(const Place& place);

    std::uint64_t flying(std::size_t window, Tier tier) const;

  private:
    void depart(Flight& flight, const TransferItem& item);

    std::vector<WindowSize> sizes_;
    std::vector<std::array<std::vector<Slot>, 2>> slots_;  // [window][tier]
    std::map<Ticket, Flight> flights_;
    std::uint64_t garbage_ = 1;
};

}  // namespace kvfix::world
