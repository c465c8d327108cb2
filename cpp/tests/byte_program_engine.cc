// The engine and the copy engine of a ByteProgram: what they write, and what must be in the slots afterwards.
#include <algorithm>
#include <string>

#include "tests/byte_program.h"

namespace kvfix::testing {
namespace {

constexpr Ticket kNoTicket = 999'999'999;

}  // namespace

void ByteProgram::run_copies_and_compute() {
    const TransferBatch batch = manager_.take_transfers();
    memory_.take(batch);
    if (batch.items.empty()) {
        complete(batch.ticket);
    } else {
        tickets_.push_back(batch.ticket);
    }
    for (auto& [id, sequence] : sequences_) {
        compute(sequence);
    }
    for (const auto& [id, sequence] : sequences_) {
        verify(sequence);
    }
}

// An engine waits for the bytes of a sequence before it computes, so whatever it overwrites has arrived.
void ByteProgram::compute(OwnedSequence& sequence) {
    for (const Held& held : held_by(sequence)) {
        memory_.check_owner(held.place, held.id);
        seen_.emplace(held.id, held.place.window);
        for (std::uint32_t offset = 0; offset < manager_.config().tokens_per_block; ++offset) {
            const std::uint32_t position = held.token_begin + offset;
            if (position >= sequence.written && position < sequence.length()) {
                if (const auto ticket = memory_.bringing(held.place, offset)) {  // resumed, and then rewound
                    std::erase(tickets_, *ticket);
                    complete(*ticket);
                }
                memory_.write(held.place, offset, sequence.hurt ? kSpoiled : sequence.cells[position], sequence.writer);
            }
        }
    }
    sequence.written = sequence.length();
}

// Checks that the sequence's own tokens are all in its slots, whatever other sequences, evictions or copies did since.
void ByteProgram::verify(const OwnedSequence& sequence) {
    for (const Held& held : held_by(sequence)) {
        if (sequence.hurt || memory_.in_flight(held.place)) {
            continue;
        }
        for (std::uint32_t offset = 0; offset < manager_.config().tokens_per_block; ++offset) {
            const std::uint32_t position = held.token_begin + offset;
            promise(position >= sequence.length() || memory_.cell(held.place, offset) == sequence.cells[position],
                    "token " + std::to_string(position) + " of request " + std::to_string(sequence.request->id) +
                        " is not in " + name(held.place) + ", where its sequence says it is");
        }
    }
}

std::vector<ByteProgram::Held> ByteProgram::held_by(const OwnedSequence& sequence) {
    const BlockManagerConfig& config = manager_.config();
    const RequestId id = sequence.request->id;
    const std::size_t beams = sequence.request->beam_width;
    const std::size_t blocks = ceil_div(sequence.length(), config.tokens_per_block);
    std::vector<std::int32_t> table(config.windows.size() * beams * 2 * blocks, -1);
    manager_.copy_batch_block_offsets({table.data(), config.windows.size(), beams, blocks}, {&id, 1},
                                      static_cast<std::uint32_t>(beams), 0, {});
    std::vector<Held> out;
    for (std::size_t window = 0; window < config.windows.size(); ++window) {
        const BlockIdTable ids =
            manager_.get_batch_cache_block_ids({&id, 1}, config.windows[window].window_size).front();
        for (std::size_t beam = 0; beam < beams; ++beam) {
            const std::int32_t* row = &table[(window * beams + beam) * 2 * blocks];
            promise(ids[beam].size() == blocks, "a sequence has too few or too many blocks");
            for (std::uint32_t block = 0; block < blocks; ++block) {
                const std::uint32_t begin = block * config.tokens_per_block;
                promise((row[block] == -1) == (ids[beam][block] == -1),
                        "block ids and block offsets disagree about a block that left");
                promise(row[block] != -1 || begin + config.tokens_per_block <= sequence.written,
                        "a block that must be written is not held");
                if (row[block] != -1) {
                    const Place place{window, Tier::primary, static_cast<SlotIndex>(row[block])};
                    const std::uint32_t end = begin + config.tokens_per_block;
                    const bool is_written = end <= std::min(sequence.written, sequence.request->num_tokens());
                    out.push_back({place, static_cast<BlockId>(ids[beam][block]), begin, is_written});
                }
            }
        }
    }
    return out;
}

void ByteProgram::complete(Ticket ticket) {
    manager_.complete(ticket);
    memory_.complete(ticket);
}

void ByteProgram::end_ticket() {
    if (tickets_.empty() || bytes_.one_in(16)) {
        promise(!attempt([&] { manager_.complete(kNoTicket); }), "a ticket that was never taken is completed");
        return;
    }
    const auto at = tickets_.begin() + bytes_.below(static_cast<std::uint32_t>(tickets_.size()));
    const Ticket ticket = *at;
    tickets_.erase(at);
    if (!bytes_.one_in(4)) {
        complete(ticket);
        return;
    }
    for (const RequestId hurt : manager_.fail(ticket)) {
        note_hurt(hurt);
    }
    memory_.fail(ticket);
    promise(!attempt([&] { manager_.fail(ticket); }), "a ticket is failed twice");
}

}  // namespace kvfix::testing
