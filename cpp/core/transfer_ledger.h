// Copies that somebody must run. The manager only orders them; a ticket says that a run of them ended, well or not.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

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
};

class TransferLedger {
  public:
    // The ticket of no transfers: it need not end, and may end as often as one likes.
    static constexpr Ticket kNothing = 0;

    void queue(const Transfer& transfer) { queued_.push_back(transfer); }

    // kNothing where nothing is queued: of a caller who only looks, nothing is kept.
    Ticket take() {
        if (queued_.empty()) {
            return kNothing;
        }
        const Ticket ticket = next_ticket_++;
        taken_.emplace(ticket, std::move(queued_));
        queued_.clear();
        return ticket;
    }
    const std::vector<Transfer>& items(Ticket ticket) const { return taken_.at(ticket); }

    // Ends a ticket and hands out its transfers.
    std::vector<Transfer> end(Ticket ticket) {
        if (ticket == kNothing) {
            return {};
        }
        const auto found = taken_.find(ticket);
        if (found == taken_.end()) {
            throw std::invalid_argument("ticket " + std::to_string(ticket) +
                                        " is not in flight: never taken, or already completed or failed");
        }
        std::vector<Transfer> items = std::move(found->second);
        taken_.erase(found);
        return items;
    }

    const std::vector<Transfer>& queued() const { return queued_; }
    const std::map<Ticket, std::vector<Transfer>>& taken() const { return taken_; }
    Ticket next_ticket() const { return next_ticket_; }

  private:
    std::vector<Transfer> queued_;
    std::map<Ticket, std::vector<Transfer>> taken_;
    Ticket next_ticket_ = 1;
};

}  // namespace kvfix
