// One thread of the stress program. It is a scheduler, a copy engine and a remote reader in turn, with sequences, pins
// and tickets of its own. It checks what the manager says about them against the arena's tables.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "tests/stress_arena.h"

namespace kvfix::stress {

class Player {
  public:
    Player(Arena& arena, std::uint64_t seed, std::uint64_t number)
        : arena_(arena), manager_(arena.manager), random_(seed * 1000 + number), next_id_((number + 1) << 32) {}

    void run() {
        static constexpr std::array<void (Player::*)(), 20> kCalls{
            &Player::admit,      &Player::admit,      &Player::admit,    &Player::remove,  &Player::remove,
            &Player::grow,       &Player::grow,       &Player::store,    &Player::take,    &Player::take,
            &Player::end_ticket, &Player::end_ticket, &Player::pin_ids,  &Player::pin_ids, &Player::pin_ids,
            &Player::unpin,      &Player::unpin,      &Player::pin_held, &Player::read,    &Player::look_deep};
        while (!arena_.progress.is_over()) {
            (this->*kCalls[below(kCalls.size())])();
            arena_.progress.count_call();
        }
        let_everything_go();
    }

  private:
    struct Owned {
        RequestPtr request;
        std::vector<BlockId> private_blocks;
        std::uint32_t length;
    };
    struct Pinned {
        BlockId id;
        Tier tier;
        SlotTable::Slot* slot;
    };
    struct Taken {
        Ticket ticket;
        std::vector<SlotTable::Slot*> writes;
    };

    std::size_t below(std::size_t bound) { return random_() % bound; }

    // Prefixes meet in whole blocks and within them.
    RequestPtr make_request() {
        std::vector<TokenId> prompt = tokens_of_a_family([this](std::size_t bound) { return below(bound); });
        if (below(2) == 0) {
            prompt.back() = static_cast<TokenId>(1000 + below(3));
        }
        return std::make_shared<const Request>(next_id_++, std::move(prompt), 1, std::nullopt, Salt(),
                                               std::vector<ExtraKey>(), std::nullopt);
    }

    // -------------------------------------------------------------------------------------------- scheduler

    void admit() {
        std::vector<RequestPtr> batch(1 + below(3));
        std::ranges::generate(batch, [this] { return make_request(); });
        try {
            const auto budget = below(2) == 0 ? std::optional<std::uint64_t>(below(80)) : std::nullopt;
            const BatchAdmission result = manager_.add_sequence_batch(batch, budget);
            std::uint64_t tokens_new = 0;
            for (std::size_t i = 0; i < result.admitted.size(); ++i) {
                expect(result.admitted[i].request_id == batch[i]->id, "another's admission");
                tokens_new += result.admitted[i].tokens_new;
                owned_.push_back({batch[i], {}, batch[i]->num_tokens()});
                note_private(owned_.back(),
                             ceil_div(static_cast<std::uint32_t>(result.admitted[i].tokens_reused), kTokensPerBlock));
            }
            expect(!budget || tokens_new <= *budget, "the budget is exceeded");
        } catch (const OutOfBlocks&) {
            make_room();
        }
    }

    // Blocks behind the reused ones are new. No other sequence has them until they are stored or let go.
    void note_private(Owned& owned, std::uint32_t first) {
        for (const std::uint32_t window : kWindows) {
            const std::vector<std::int64_t> ids = ids_of(owned, window);
            for (std::size_t position = first; position < ids.size(); ++position) {
                expect(ids[position] >= 0, "a new block is not held");
                arena_.private_blocks.claim(static_cast<BlockId>(ids[position]), owned.request->id);
                owned.private_blocks.push_back(static_cast<BlockId>(ids[position]));
                known_[owned.private_blocks.back()] = window;
            }
        }
    }
    void forget_private(Owned& owned) {
        for (const BlockId block : std::exchange(owned.private_blocks, {})) {
            arena_.private_blocks.release(block);
        }
    }
    std::vector<std::int64_t> ids_of(const Owned& owned, std::uint32_t window) {
        return manager_.get_batch_cache_block_ids({&owned.request->id, 1}, window).front().front();
    }

    void grow() {
        if (owned_.empty()) {
            return;
        }
        Owned& owned = owned_[below(owned_.size())];
        const auto count = static_cast<std::uint32_t>(1 + below(6));
        forget_private(owned);  // some may leave a window on the way
        try {
            const std::span<const RequestId> id(&owned.request->id, 1);
            if (!manager_.add_few_tokens(id, {&count, 1}, std::nullopt, {{&owned.length, 1}})) {
                manager_.add_tokens(id, {&count, 1}, std::nullopt, {{&owned.length, 1}});
            }
            owned.length += count;
        } catch (const OutOfBlocks&) {
            make_room();
        }
    }
    void store() {
        if (!owned_.empty()) {
            Owned& owned = owned_[below(owned_.size())];
            forget_private(owned);
            manager_.store_context_blocks(owned.request->id,
                                          static_cast<std::uint32_t>(below(owned.request->num_tokens() + 1)));
        }
    }
    void remove() {
        if (!owned_.empty()) {
            std::swap(owned_[below(owned_.size())], owned_.back());
            forget_private(owned_.back());
            manager_.remove_sequence(owned_.back().request->id, below(4) != 0, false, std::nullopt);
            owned_.pop_back();
        }
    }
    void make_room() {
        for (std::size_t i = 0; i < 2; ++i) {
            remove();
            unpin();
            take();
            end_ticket();
        }
    }

    // -------------------------------------------------------------------------------------------- copy engine

    void take() {
        const TransferBatch batch = manager_.take_transfers();
        Taken taken{batch.ticket, {}};
        for (const TransferItem& item : batch.items) {
            const Tier to = item.kind == TransferKind::offload ? Tier::host : Tier::primary;
            SlotTable::Slot& slot = arena_.slots.at(item.window_size, to, item.slot_dst);
            SlotTable::begin_write(slot, batch.ticket);
            taken.writes.push_back(&slot);
        }
        taken_.push_back(std::move(taken));
    }
    void end_ticket() {
        if (taken_.empty()) {
            return;
        }
        for (SlotTable::Slot* slot : taken_.front().writes) {
            SlotTable::end_write(*slot);
        }
        if (below(16) == 0) {
            manager_.fail(taken_.front().ticket);
        } else {
            manager_.complete(taken_.front().ticket);
        }
        taken_.pop_front();
    }

    // -------------------------------------------------------------------------------------------- remote reader

    void remember_pin(BlockId id, WindowSize window, PinnedSlot where) {
        SlotTable::Slot& slot = arena_.slots.at(window, where.tier, where.slot);
        SlotTable::pin(slot);
        pins_.push_back({id, where.tier, &slot});
    }
    void pin_ids() {
        if (known_.empty()) {
            return;
        }
        const auto [id, window] = *std::next(known_.begin(), static_cast<std::ptrdiff_t>(below(known_.size())));
        try {
            remember_pin(id, window, manager_.pin_blocks_by_id({&id, 1}).front());
        } catch (const BlockInFlight&) {
            return;  // a transfer writes it
        } catch (const std::invalid_argument&) {
            known_.erase(id);  // gone since we heard of it
        }
        while (pins_.size() > 8) {
            unpin();
        }
    }
    void pin_held() {
        if (owned_.empty()) {
            return;
        }
        const Owned& owned = owned_[below(owned_.size())];
        try {
            std::vector<BlockId> ids;
            for (const std::uint32_t window : kWindows) {
                for (const std::int64_t id : ids_of(owned, window)) {
                    if (id >= 0) {
                        ids.push_back(static_cast<BlockId>(id));
                    }
                }
            }
            const std::vector<PinnedSlot> slots = manager_.pin_blocks_by_id(ids);
            for (std::size_t i = 0; i < ids.size(); ++i) {
                manager_.unpin_blocks_by_id({&ids[i], 1}, slots[i].tier);
            }
        } catch (const BlockInFlight&) {
            take();
        }
    }
    void unpin() {
        if (pins_.empty()) {
            return;
        }
        std::swap(pins_[below(pins_.size())], pins_.back());
        const Pinned pinned = pins_.back();
        pins_.pop_back();
        SlotTable::unpin(*pinned.slot);
        manager_.unpin_blocks_by_id({&pinned.id, 1}, pinned.tier);
    }

    // -------------------------------------------------------------------------------------------- readers

    void read() {
        for (const WindowStats& window : manager_.get_kv_cache_stats().windows) {
            for (const TierStats& tier : {window.primary, window.host}) {
                expect(tier.free + tier.cached + tier.owned + tier.in_flight == tier.blocks,
                       "slots are lost or counted twice");
            }
        }
        manager_.analyze_prefix_reuse(make_request());
        manager_.get_latest_events();
        if (!owned_.empty()) {
            const Owned& owned = owned_[below(owned_.size())];
            for (const std::uint32_t window : kWindows) {
                const std::vector<std::int64_t> ids = ids_of(owned, window);
                known_[static_cast<BlockId>(ids.back())] = window;
            }
            expect(manager_.get_request_stats(owned.request->id).tokens_new > 0,
                   "a request without a token to compute");
        }
    }
    void look_deep() {
        if (below(8) == 0) {
            manager_.check_invariants();
            manager_.digest();
            manager_.refresh_blocks();
        }
    }

    void let_everything_go() {
        while (!taken_.empty()) {
            end_ticket();
        }
        while (!pins_.empty()) {
            unpin();
        }
        while (!owned_.empty()) {
            remove();
        }
    }

    Arena& arena_;
    BlockManager& manager_;
    std::mt19937_64 random_;
    RequestId next_id_;
    std::vector<Owned> owned_;
    std::vector<Pinned> pins_;
    std::deque<Taken> taken_;
    std::map<BlockId, std::uint32_t> known_;  // blocks heard of, and their window
};

}  // namespace kvfix::stress
