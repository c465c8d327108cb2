// Copies that the caller must run. The manager only orders them; a ticket reports the end of a run of them, good or bad.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/set_digest.h"
#include "core/types.h"

namespace kvfix {

enum class TransferKind : std::uint8_t { offload, onboard, copy };

struct Transfer {
    TransferKind kind;
    std::uint32_t window;  // index, not size
    SlotIndex slot_src;
    SlotIndex slot_dst;
    std::uint32_t tokens;
    BlockIndex block;   // the one whose slot is written
    BlockIndex source;  // the one whose slot is read; the same block for offload and a whole onboard

    std::uint64_t digest() const { return digest_of_words(kind, window, slot_src, slot_dst, tokens, block, source); }
};

// A sequence that holds the destination of a transfer to primary, and where. It may have let the block go since.
struct Waiting {
    std::uint32_t window;  // index, not size
    std::uint32_t beam;
    std::uint32_t position;
    BlockIndex block;
    RequestId request;
};

class TransferLedger {
  public:
    struct Taken {
        std::vector<Transfer> items;
        std::vector<Waiting> waiting;
        std::uint64_t digest;
    };

    // The ticket of no transfers: it need not end, and may end as often as one likes.
    static constexpr Ticket kNothing = 0;

    void queue(const Transfer& transfer) {
        queued_.push_back(transfer);
        queued_digest_ = digest_of_words(queued_digest_, transfer.digest());
    }

    // Behind the transfer, and before the ticket that takes it: only the call that queues one lets others share its block.
    void wait(const Waiting& waiting) { waiting_.push_back(waiting); }

    // kNothing where nothing is queued: of a caller who only looks, nothing is kept.
    Ticket take() {
        if (queued_.empty()) {
            return kNothing;
        }
        const Ticket ticket = next_ticket_++;
        Taken taken{std::exchange(queued_, {}), std::exchange(waiting_, {}), digest_of_words(ticket, queued_digest_)};
        taken_digest_.add(taken.digest);
        taken_.emplace(ticket, std::move(taken));
        queued_digest_ = 0;
        return ticket;
    }
    const std::vector<Transfer>& items(Ticket ticket) const { return taken_.at(ticket).items; }

    // Ends a ticket and hands out what it was.
    Taken end(Ticket ticket) {
        if (ticket == kNothing) {
            return {};
        }
        const auto found = taken_.find(ticket);
        if (found == taken_.end()) {
            throw std::invalid_argument("ticket " + std::to_string(ticket) +
                                        " is not in flight: never taken, or already completed or failed");
        }
        taken_digest_.remove(found->second.digest);
        Taken taken = std::move(found->second);
        taken_.erase(found);
        return taken;
    }

    const std::vector<Transfer>& queued() const { return queued_; }
    std::size_t tickets() const { return taken_.size(); }  // that have not ended
    template <class Visit>
    void for_each_taken(Visit&& visit) const {
        for (const auto& [ticket, taken] : taken_) {
            std::ranges::for_each(taken.items, visit);
        }
    }
    std::uint64_t digest() const { return digest_of_words(queued_digest_, taken_digest_.value(), next_ticket_); }

  private:
    std::vector<Transfer> queued_;
    std::vector<Waiting> waiting_;  // for those of queued_
    std::map<Ticket, Taken> taken_;
    std::uint64_t queued_digest_ = 0;  // of queued_, in its order
    SetDigest taken_digest_;
    Ticket next_ticket_ = 1;
};

}  // namespace kvfix
