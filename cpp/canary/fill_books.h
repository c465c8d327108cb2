// The canary's books: what each slot was filled with, and which blocks are complete, which must not change until the
// host says so; and the looks that find out whether they have.
//
// Nothing here reads the device, nor its tables, which are the suspects. One rule covers most of what rewrites complete
// blocks on purpose (a rewound draft, a window that goes round, a slot with a new owner): a step says which positions
// it writes, and a complete block with one of them is another fill from then on. A block in which a reused prefix ends
// is one already when its request comes: its rest will be written, by a step or by a load that begins at once. Copies
// between slots and tiers take the fill along.
//
// For one thread alone, the loop's, in the order in which work is given to the stream; so there is no lock. A call that
// throws may have done a part of its work: the canary ends then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "canary/fills.h"
#include "canary/looks.h"
#include "core/types.h"

namespace kvfix::canary {

enum class Copy : std::uint8_t { onboard, offload, within_device };

// One request's part of a step that has been enqueued.
struct Write {
    RequestId request;
    // Of its blocks, from that of the first written position on. Nothing: all of them are known.
    std::optional<std::vector<Slot>> slots;
    std::uint64_t begin;     // the first position that the step writes
    std::uint64_t end;       // the one behind the last
    std::uint64_t accepted;  // positions below are kept for certain: less than `end` where drafts may be rewound
};

// A request whose positions from `begin` on were written by steps, and are kept for certain; then it has got slots.
struct Progress {
    RequestId request;
    std::uint64_t begin;
    std::uint64_t end;
    std::vector<Slot> slots;
};

// A block that is reused as it is, and that nobody was seen to fill so far.
struct Unfilled {
    Slot slot;
    Requester filler;  // who began
    RequestId reader;
};

struct BooksConfig {
    std::uint32_t tokens_per_block;
    std::uint32_t layers;  // whose digests a block has
    // Or else blocks may leave the device and come back unheard, so one that is unknown is taken as it is.
    bool knows_all;
    LookLimits looks;
    std::uint64_t seed;  // for the order of looks at live blocks
};

class FillBooks {
  public:
    explicit FillBooks(const BooksConfig& config);
    FillBooks(const FillBooks&) = delete;  // its parts know where the others are
    FillBooks& operator=(const FillBooks&) = delete;

    // A copy of the leading tokens of a block has been enqueued.
    void moved(Copy kind, Slot source, Slot target, std::uint64_t tokens);
    // A request has its blocks, and takes the first `reused` positions as they are. `part_is_copied`: a block inside
    // which they end is a copy of its own, of which the books have not heard.
    std::vector<Unfilled> admitted(RequestId request, std::vector<Slot> slots, std::uint64_t reused,
                                   bool part_is_copied);
    // An equal block of another takes the place of its own. kNowhere: a window has passed it.
    std::vector<Unfilled> replaced(RequestId request, std::size_t place, Slot slot);
    // It has given back a block that it had not begun, and got another one for the same positions.
    void regrown(RequestId request, std::size_t place, Slot slot);
    // It has given back the blocks behind these.
    void shrunk(RequestId request, std::size_t blocks);
    // It lets go of its slots: its blocks may leave the device. Only of the leading ones it is known where they were.
    void left(RequestId request, std::size_t places_known);
    // It has its blocks again, perhaps in other slots.
    void came_back(RequestId request, std::vector<Slot> slots);
    // What they hold may change unheard.
    void forget(std::span<const Slot> slots);
    // Where the caller hears of the blocks of active requests alone: one more of these has the slots, or one less. What
    // none has is forgotten, or kept by the blocks' numbers where these are told: a block keeps its number when it moves.
    void hold(std::span<const Slot> slots, std::span<const Slot> numbers = {});
    void let_go(std::span<const Slot> slots, std::span<const Slot> numbers = {});
    // It has got further blocks, which a step or a load will write.
    void grown(RequestId request, std::span<const Slot> slots);
    // A load that wrote these positions is over; or steps wrote them, and they are kept for certain.
    void loaded(RequestId request, std::uint64_t begin, std::uint64_t end);
    // `holds`: and holds them.
    void went_on(std::span<const Progress> all, bool holds = false);
    void written(const Write& write);

    // What has arrived, each in the order of its sending, is compared; then a step is enqueued that makes these writes.
    // Returns the slots whose digests are wanted behind it, at most `free`.
    std::vector<Slot> step(std::uint64_t number, std::span<const Write> writes, std::size_t free);
    std::vector<Changed> arrived(std::span<const std::vector<std::uint64_t>> sendings);
    // The request has ended, or waits again. What it has filled stays until its slots are given away. Returns slots
    // that are looked at first, and alone: they may be given away at once, and of others that was not heard yet.
    std::vector<Slot> released(RequestId request, std::size_t free);
    // It has ended unheard: its slots may be others' by now.
    void lost(RequestId request) { static_cast<void>(end(request)); }

    // The slots of a request, from a place on.
    std::span<const Slot> slots_of(RequestId request, std::size_t first = 0) const;
    // What a slot of the device holds.
    const Fill* fill_at(Slot slot) const;
    const Looks& looks() const { return looks_; }
    std::size_t fills() const { return fills_.count(); }
    std::size_t live() const { return live_.size(); }

  private:
    struct Sequence {
        std::vector<Slot> slots;
        std::size_t complete = 0;  // leading blocks that are
        std::size_t taken = 0;     // leading blocks that others have filled
    };

    Sequence& live(RequestId request);
    static Slot& place_of(RequestId request, Sequence& sequence, std::size_t place);
    bool is_filled_by(RequestId request, Slot slot) const;
    void give(Slot slot, RequestId request);
    FillIndex take(Slot slot, std::uint32_t wanted, RequestId request, std::vector<Unfilled>& unfilled);
    void fill(RequestId request, Sequence& sequence, std::uint64_t begin, std::uint64_t end, std::uint64_t kept);
    void fill_block(RequestId request, Slot slot, std::uint32_t first, std::uint32_t end);
    std::vector<Look> end(RequestId request);

    const std::uint32_t tokens_per_block_;
    const bool knows_all_;
    Fills fills_;
    FilledSlots primary_{fills_};
    FilledSlots host_{fills_};
    Looks looks_;
    std::vector<std::uint32_t> holders_;  // of each slot, where that is told
    FilledSlots kept_{fills_};            // by number, of blocks that no active request has
    std::unordered_map<RequestId, Sequence> live_;
    std::unordered_map<RequestId, std::vector<std::optional<FillUse>>>
        away_;  // of requests without slots, their blocks
};

}  // namespace kvfix::canary
