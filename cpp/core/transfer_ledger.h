// The copies that the caller must run. The manager only orders them. A ticket reports how a run of them ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
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
    BlockIndex block;   // its slot is written
    BlockIndex source;  // its slot is read; the same block for an offload and for an onboard of a whole block

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
        std::uint64_t digest;  // set once someone has asked for the ledger's
    };

    // The ticket of no transfers. It need not end, and may end any number of times.
    static constexpr Ticket kNothing = 0;

    void queue(const Transfer& transfer) { queued_.push_back(transfer); }

    // Call it after queue(), and before the ticket that takes the transfer: only the call that queues a transfer lets
    // others share its block.
    void wait(const Waiting& waiting) { waiting_.push_back(waiting); }

    // Returns kNothing if nothing is queued, so a caller that only looks leaves nothing behind.
    Ticket take() {
        if (queued_.empty()) {
            return kNothing;
        }
        const Ticket ticket = next_ticket_++;
        Taken taken{std::exchange(queued_, {}), std::exchange(waiting_, {}), 0};
        if (watched_) [[unlikely]] {
            watch(ticket, taken);
        }
        taken_.emplace(ticket, std::move(taken));
        queued_digest_ = 0;
        queued_digested_ = 0;
        return ticket;
    }
    const std::vector<Transfer>& items(Ticket ticket) const { return taken_.at(ticket).items; }

    // Ends a ticket and returns its transfers.
    Taken end(Ticket ticket) {
        if (ticket == kNothing) {
            return {};
        }
        const auto found = taken_.find(ticket);
        if (found == taken_.end()) {
            throw std::invalid_argument("ticket " + std::to_string(ticket) +
                                        " is not in flight: never taken, or already completed or failed");
        }
        if (watched_) [[unlikely]] {
            taken_digest_.remove(found->second.digest);
        }
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
    // Looks at what has been queued since the last question, and the first time at everything.
    std::uint64_t digest() {
        if (!watched_) {
            watched_ = true;
            for (auto& [ticket, taken] : taken_) {
                watch(ticket, taken);
            }
        }
        queued_digest_ = digest_behind(queued_digest_, std::span(queued_).subspan(queued_digested_));
        queued_digested_ = queued_.size();
        return digest_of_words(queued_digest_, taken_digest_.value(), next_ticket_);
    }

  private:
    // Goes on with the digest of the transfers before these, in their order.
    static std::uint64_t digest_behind(std::uint64_t digest, std::span<const Transfer> items) {
        for (const Transfer& item : items) {
            digest = digest_of_words(digest, item.digest());
        }
        return digest;
    }
    void watch(Ticket ticket, Taken& taken) {
        taken.digest = digest_of_words(ticket, digest_behind(0, taken.items));
        taken_digest_.add(taken.digest);
    }

    std::vector<Transfer> queued_;
    std::vector<Waiting> waiting_;  // for the transfers in queued_
    std::map<Ticket, Taken> taken_;
    bool watched_ = false;             // someone has asked for the digest: until then nobody pays for it
    std::uint64_t queued_digest_ = 0;  // of the first queued_digested_ in queued_, in their order
    std::size_t queued_digested_ = 0;
    SetDigest taken_digest_;
    Ticket next_ticket_ = 1;
};

}  // namespace kvfix
