#include "core/tier_index.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>

#include "core/check.h"
#include "core/config.h"
#include "core/errors.h"
#include "core/steps.h"

namespace kvfix {
namespace {

constexpr std::size_t kBlocksMax = kTierRootBit - 1;
constexpr std::uint32_t kAhead = 8;  // blocks that memory is fetched before it is read

std::uint32_t at_least_one(std::uint32_t value, const char* field) {
    if (value == 0) {
        throw std::invalid_argument(std::string(field) + " is 0: at least 1");
    }
    return value;
}

std::uint32_t checked_slots(std::uint32_t slots) {
    if (slots >= kTierRootBit) {
        throw std::invalid_argument("slots is " + std::to_string(slots) + ": at most " +
                                    std::to_string(kTierRootBit - 1));
    }
    return at_least_one(slots, "slots");
}

std::uint32_t checked_bits(std::uint32_t bits) {
    if (bits == 0 || bits > 64) {
        throw std::invalid_argument("hash_bits is " + std::to_string(bits) + ": 1 to 64");
    }
    return bits;
}

}  // namespace

TierIndex::TierIndex(std::uint32_t slots, std::uint32_t tokens_per_block, std::uint32_t hash_bits, TierPolicy policy)
    : tokens_per_block_(at_least_one(tokens_per_block, "tokens_per_block")),
      blocks_(checked_slots(slots), tokens_per_block, checked_bits(hash_bits), drawn_seed()),
      admission_(policy, slots) {}

// ------------------------------------------------------------------------------------------------ sequences

TierIndex::Sequence& TierIndex::at(TierSequenceId id) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) {
        throw UnknownRequest(id);
    }
    return found->second;
}

TierSequenceId TierIndex::open(const std::string& identity, std::vector<ExtraKey> extra_keys) {
    check_extra_keys("extra_keys", extra_keys, kNone);
    const ManagerGuard guard(mutex_);
    const TierSequenceId id = ++opened_;
    const TierParent root = blocks_.open_root(identity);
    Sequence& opened = sequences_[id];
    opened.root = root;
    opened.extra_keys = std::move(extra_keys);
    return id;
}

void TierIndex::extend(TierSequenceId id, std::vector<TokenId> more) {
    const ManagerGuard guard(mutex_);
    Sequence& sequence = at(id);
    const std::size_t blocks = more.size() / tokens_per_block_;
    if (more.size() % tokens_per_block_ != 0 || blocks > kBlocksMax - sequence.blocks.size()) {
        throw std::invalid_argument("sequence " + std::to_string(id) + ": " + std::to_string(more.size()) +
                                    " tokens more are no whole blocks of " + std::to_string(tokens_per_block_) +
                                    ", or over the limit of " + std::to_string(kBlocksMax) + " blocks in all");
    }
    sequence.pieces.push_back(std::move(more));
    const std::vector<TokenId>& piece = sequence.pieces.back();
    for (std::size_t begin = 0; begin < piece.size(); begin += tokens_per_block_) {
        const std::uint64_t above =
            sequence.blocks.empty() ? blocks_.root_key(sequence.root) : sequence.blocks.back().key;
        const std::string extra = extras(sequence, sequence.blocks.size());
        const BlockContent content{std::span(piece).subspan(begin, tokens_per_block_), extra};
        sequence.blocks.push_back({blocks_.child_key(above, content), content.tokens.data()});
    }
}

void TierIndex::close(TierSequenceId id) {
    const ManagerGuard guard(mutex_);
    blocks_.close_root(at(id).root);
    sequences_.erase(id);
}

std::string TierIndex::extras(const Sequence& sequence, std::size_t position) const {
    if (sequence.extra_keys.empty()) {
        return {};
    }
    const auto begin = static_cast<std::uint32_t>(position * tokens_per_block_);
    return block_extras(sequence.extra_keys, begin, begin + tokens_per_block_);
}

TierParent TierIndex::parent_behind(const Sequence& sequence) {
    return sequence.path.empty() ? sequence.root : sequence.path.back().block;
}

// Brings the path up to date. Blocks go last first, so the missing ones are at its end. Every step back undoes one
// forward.
void TierIndex::follow(Sequence& sequence) const {
    std::deque<Place>& path = sequence.path;
    while (!path.empty() && blocks_[path.back().block].generation != path.back().generation) {
        KVFIX_STEP();
        path.pop_back();
    }
    sequence.arrived = std::min(sequence.arrived, static_cast<std::uint32_t>(path.size()));
    while (path.size() < sequence.blocks.size()) {
        KVFIX_STEP();
        const std::size_t position = path.size();
        if (position + kAhead < sequence.blocks.size()) {
            blocks_.prefetch(sequence.blocks[position + kAhead].key);
        }
        const KnownBlock& next = sequence.blocks[position];
        const std::string more = extras(sequence, position);
        const TierSlot block =
            blocks_.find(parent_behind(sequence), next.key, {{next.tokens, tokens_per_block_}, more});
        if (block == kNone) {
            break;
        }
        path.push_back({block, blocks_[block].generation});
    }
    while (sequence.arrived < path.size() && blocks_[path[sequence.arrived].block].state == TierBlock::State::held) {
        KVFIX_STEP();
        ++sequence.arrived;
    }
    sequence.settled = std::max(sequence.settled, sequence.arrived);
}

std::uint32_t TierIndex::readable(const Sequence& sequence) const {
    if (!blocks_.any_bad()) {
        return sequence.arrived;
    }
    const auto begin = sequence.path.begin();
    return static_cast<std::uint32_t>(
        std::find_if(begin, begin + sequence.arrived, [this](const Place& place) { return blocks_[place.block].bad; }) -
        begin);
}

// ------------------------------------------------------------------------------------------------ reading

std::uint32_t TierIndex::held(TierSequenceId id) {
    const ManagerGuard guard(mutex_);
    Sequence& sequence = at(id);
    follow(sequence);
    if (sequence.arrived != 0) {
        blocks_.touch(sequence.path[sequence.arrived - 1].block);  // those before it are evicted after it in any case
    }
    return readable(sequence);
}

std::vector<TierSlot> TierIndex::pin(TierSequenceId id, std::uint32_t first, std::uint32_t end) {
    const ManagerGuard guard(mutex_);
    Sequence& sequence = at(id);
    follow(sequence);
    std::vector<TierSlot> out;
    for (std::uint32_t position = first; position < std::min(end, readable(sequence)); ++position) {
        out.push_back(sequence.path[position].block);
    }
    for (const TierSlot block : out) {
        blocks_.pin(block);
    }
    return out;
}

void TierIndex::unpin(std::span<const TierSlot> slots) {
    const ManagerGuard guard(mutex_);
    std::unordered_map<TierSlot, std::uint32_t> wanted;
    for (const TierSlot slot : slots) {
        const std::uint32_t pins = slot < blocks_.size() ? blocks_[slot].pins : 0;
        if (++wanted[slot] > pins) {
            throw std::invalid_argument("slot " + std::to_string(slot) + " is unpinned " +
                                        std::to_string(wanted[slot]) + " times but pinned " + std::to_string(pins) +
                                        " times");
        }
    }
    for (const TierSlot slot : slots) {
        blocks_.unpin(slot);
    }
}

void TierIndex::condemn(std::span<const TierSlot> slots) {
    const ManagerGuard guard(mutex_);
    for (const TierSlot slot : slots) {
        if (slot >= blocks_.size() || blocks_[slot].pins == 0) {
            throw std::invalid_argument("slot " + std::to_string(slot) +
                                        " is not pinned: by now it may hold another block than the one that was read");
        }
    }
    for (const TierSlot slot : slots) {
        blocks_.condemn(slot);
    }
}

// ------------------------------------------------------------------------------------------------ filling

// A sequence is judged by what is known of the blocks that it begins with, mostly a prompt's.
void TierIndex::meet(Sequence& sequence, bool reused) const {
    const auto blocks = static_cast<std::uint32_t>(sequence.blocks.size());
    std::uint32_t known = reused ? blocks : sequence.arrived;
    while (known < blocks && admission_.knows(sequence.blocks[known].key)) {
        KVFIX_STEP();
        ++known;
    }
    sequence.asked_before = known;
    sequence.warmth = TierAdmission::warmth(known, blocks);
}

AskedBlock TierIndex::asked_block(const Sequence& sequence, std::uint32_t position) const {
    return {TierAdmission::kind(position < sequence.asked_before, sequence.warmth), admission_.now()};
}

// Asks once for each block: what a sequence asks for again while it grows says nothing about others.
void TierIndex::tell_policy(Sequence& sequence, std::uint32_t end, std::uint32_t known, bool reused) {
    if (!admission_.is_adaptive()) {
        return;
    }
    if (sequence.asked == 0 && end != 0) {
        meet(sequence, reused);
    }
    if (reused) {
        sequence.asked_before = std::max(sequence.asked_before, end);
    }
    for (; sequence.asked < end; ++sequence.asked) {
        if (sequence.asked + kAhead < end) {
            admission_.prefetch(sequence.blocks[sequence.asked + kAhead].key);
        }
        const bool before = sequence.asked < sequence.asked_before;
        admission_.asked(sequence.blocks[sequence.asked].key, sequence.asked, before, sequence.warmth,
                         sequence.asked < known);
        if (sequence.asked < sequence.arrived) {
            blocks_.note(sequence.path[sequence.asked].block, asked_block(sequence, sequence.asked));
        }
    }
}

TierIndex::Room TierIndex::room_for(const Sequence& sequence, std::uint32_t position, bool reused) {
    if (blocks_.free() != 0) {
        return {};
    }
    const auto going = [this](BlockKind kind, std::uint64_t since) { return admission_.going(kind, since); };
    const TierSlot victim = blocks_.victim(parent_behind(sequence), going);
    if (victim == kNone) {
        return {.is_there = false};
    }
    const bool is_taken = reused || admission_.takes(position < sequence.asked_before, sequence.warmth,
                                                     blocks_[victim].kind, blocks_[victim].asked_at);
    return {.victim = victim, .is_declined = !is_taken};
}

std::optional<TierClaim> TierIndex::claim(TierSequenceId id, std::uint32_t end, std::uint32_t known,
                                          std::span<const Priority> priorities, bool reused) {
    const ManagerGuard guard(mutex_);
    Sequence& sequence = at(id);
    if (end > sequence.blocks.size() || priorities.size() > end) {
        throw std::invalid_argument("sequence " + std::to_string(id) + " has " +
                                    std::to_string(sequence.blocks.size()) + " blocks; " + std::to_string(end) +
                                    " are claimed, with " + std::to_string(priorities.size()) + " priorities");
    }
    if (const auto over = std::ranges::find_if(priorities, [](Priority one) { return one > kPriorityMax; });
        over != priorities.end()) {
        throw std::invalid_argument("priority " + std::to_string(*over) + " is over " + std::to_string(kPriorityMax));
    }
    if (!priorities.empty()) {
        sequence.priorities.resize(end, kPriorityDefault);
        std::ranges::copy(priorities, sequence.priorities.end() - std::ssize(priorities));
    }
    follow(sequence);
    if (sequence.arrived < std::min<std::size_t>(end, sequence.path.size())) {
        return std::nullopt;
    }
    tell_policy(sequence, end, known, reused);
    TierClaim out;
    out.first = std::min(sequence.arrived, end);
    sequence.settled = std::max(sequence.settled, std::min(known, end));
    if (sequence.arrived < sequence.settled && sequence.settled - sequence.arrived > blocks_.free()) {
        return out;
    }
    sequence.is_declined &= !reused;
    if (sequence.is_declined && sequence.arrived < end) {
        out.declined = true;
        return out;
    }
    for (std::uint32_t position = sequence.arrived; position < end; ++position) {
        if (position + kAhead < end) {
            blocks_.prefetch(sequence.blocks[position + kAhead].key);
        }
        const Room room = room_for(sequence, position, reused);
        if (!room.is_there || room.is_declined) {
            out.declined = sequence.is_declined = room.is_declined;
            break;
        }
        const Priority priority =
            position < sequence.priorities.size() ? sequence.priorities[position] : kPriorityDefault;
        const KnownBlock& next = sequence.blocks[position];
        const std::string more = extras(sequence, position);
        const TierSlot block = blocks_.fill(parent_behind(sequence), next.key, {{next.tokens, tokens_per_block_}, more},
                                            priority, id, asked_block(sequence, position), room.victim);
        sequence.path.push_back({block, blocks_[block].generation});
        out.slots.push_back(block);
    }
    if (!out.slots.empty()) {
        sequence.claimed_from = sequence.arrived;
        sequence.settled = static_cast<std::uint32_t>(sequence.path.size());
    }
    return out;
}

// The slots must be in order, each following the one before it, and nothing may follow the last. Slots that were
// dropped meanwhile have no order.
void TierIndex::check_claim(std::span<const TierSlot> slots, Part part) const {
    const auto is_filling = [this](TierSlot slot) {
        return slot < blocks_.size() && blocks_[slot].state == TierBlock::State::filling;
    };
    std::unordered_set<TierSlot> dropped;
    for (std::size_t i = 0; i < slots.size(); ++i) {
        bool fits = is_filling(slots[i]);
        if (fits && blocks_[slots[i]].parent == kNone) {
            fits = dropped.insert(slots[i]).second;
        } else if (fits) {
            const TierParent parent = blocks_[slots[i]].parent;
            fits =
                (i == 0 ? part == Part::end || is_tier_root(parent) || !is_filling(parent) : parent == slots[i - 1]) &&
                blocks_[slots[i]].children == (i + 1 == slots.size() ? 0U : 1U);
        }
        if (!fits) {
            throw std::invalid_argument("slot " + std::to_string(slots[i]) + ", number " + std::to_string(i) +
                                        ": commit or abandon all slots of one claim, in its order, once");
        }
    }
}

void TierIndex::commit(std::span<const TierSlot> slots) {
    const ManagerGuard guard(mutex_);
    check_claim(slots, Part::whole);
    for (const TierSlot slot : slots) {
        blocks_.arrive(slot);
    }
}

void TierIndex::abandon(std::span<const TierSlot> slots) {
    const ManagerGuard guard(mutex_);
    give_up(slots, &TierBlocks::abandon);
}

void TierIndex::set_aside(std::span<const TierSlot> slots) {
    const ManagerGuard guard(mutex_);
    give_up(slots, &TierBlocks::set_aside);
}

void TierIndex::give_up(std::span<const TierSlot> slots, void (TierBlocks::*give_up_block)(TierSlot)) {
    check_claim(slots, Part::end);
    // the last first, because a child goes before its parent
    for (std::size_t left = slots.size(); left != 0; --left) {
        const TierSlot slot = slots[left - 1];
        if (const auto writer = sequences_.find(blocks_[slot].writer); writer != sequences_.end()) {
            writer->second.settled = std::min(writer->second.settled, writer->second.claimed_from);
        }
        (blocks_.*give_up_block)(slot);
    }
}

void TierIndex::drop() {
    const ManagerGuard guard(mutex_);
    blocks_.drop_all();
    for (auto& [id, sequence] : sequences_) {
        sequence.settled = 0;
        sequence.is_declined = false;
    }
}

// ------------------------------------------------------------------------------------------------ numbers

TierIndexStats TierIndex::stats() const {
    const ManagerGuard guard(mutex_);
    return {blocks_.size(), blocks_.free(), blocks_.owned(), blocks_.evicted(), sequences_.size()};
}

void TierIndex::check_invariants() const {
    const ManagerGuard guard(mutex_);
    blocks_.check_invariants();
    for (const auto& [id, sequence] : sequences_) {
        check(sequence.arrived <= sequence.path.size() && sequence.path.size() <= sequence.blocks.size(),
              "a sequence has found more than it has");
    }
}

}  // namespace kvfix
