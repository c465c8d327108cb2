#include "canary/fill_books.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/errors.h"

namespace kvfix::canary {
namespace {

std::uint32_t checked_tokens_per_block(std::uint32_t tokens) {
    if (tokens == 0 || tokens > kTokensPerBlockMax) {
        throw std::invalid_argument("tokens_per_block is " + std::to_string(tokens) + "; it is 1 to " +
                                    std::to_string(kTokensPerBlockMax));
    }
    return tokens;
}

void check_numbers(std::span<const Slot> slots, std::span<const Slot> numbers) {
    if (!numbers.empty() && numbers.size() != slots.size()) {
        throw std::invalid_argument(std::to_string(slots.size()) + " blocks have " + std::to_string(numbers.size()) +
                                    " numbers; usual cause: a request got or lost blocks unheard");
    }
}

}  // namespace

FillBooks::FillBooks(const BooksConfig& config)
    : tokens_per_block_(checked_tokens_per_block(config.tokens_per_block)),
      knows_all_(config.knows_all),
      fills_(config.layers),
      looks_(fills_, primary_, config.looks, config.seed) {}

void FillBooks::moved(Copy kind, Slot source, Slot target, std::uint64_t tokens) {
    FilledSlots& source_tier = kind == Copy::onboard ? host_ : primary_;
    FilledSlots& target_tier = kind == Copy::offload ? host_ : primary_;
    FillIndex fill = source_tier.at(source);
    const bool is_known = fill != kNoFill;
    const bool is_whole = is_known && fills_[fill].is_complete && tokens >= tokens_per_block_;
    if (!is_whole) {
        const auto kept = is_known ? std::min<std::uint64_t>(fills_[fill].tokens, tokens) : 0;
        fill = fills_.make(is_known ? fills_[fill].by() : std::nullopt, static_cast<std::uint32_t>(kept));
    }
    target_tier.put(target, fill);
    if (is_whole && kind != Copy::offload) {
        looks_.add(target, fill, Occasion::returned);
    }
}

std::vector<Unfilled> FillBooks::admitted(RequestId request, std::vector<Slot> slots, std::uint64_t reused,
                                          bool part_is_copied) {
    const std::uint32_t size = tokens_per_block_;
    const auto whole = static_cast<std::size_t>(reused / size);
    Sequence& sequence = live_[request];
    sequence = {.slots = std::move(slots), .complete = whole, .taken = whole};
    std::vector<Unfilled> unfilled;
    std::uint64_t left = reused;  // positions, from this block on
    for (const Slot slot : sequence.slots) {
        const auto wanted = static_cast<std::uint32_t>(std::min<std::uint64_t>(size, left));
        left -= wanted;
        if (slot == kNowhere) {
            continue;
        }
        if (part_is_copied && wanted > 0 && wanted < size) {
            primary_.put(slot, fills_.make(std::nullopt, wanted));
        } else if (const FillIndex fill = take(slot, wanted, request, unfilled); fill != kNoFill) {
            looks_.add(slot, fill, Occasion::reused, request);
        }
    }
    return unfilled;
}

// The leading positions of a block, as they are. Returns what shall be looked at.
FillIndex FillBooks::take(Slot slot, std::uint32_t wanted, RequestId request, std::vector<Unfilled>& unfilled) {
    const std::uint32_t size = tokens_per_block_;
    if (wanted == 0) {
        give(slot, request);
        return kNoFill;
    }
    if (primary_.at(slot) == kNoFill) {
        primary_.put(slot, knows_all_ ? fills_.make(std::nullopt) : fills_.make(std::nullopt, size, true));
    }
    const FillIndex there = primary_.at(slot);
    const Fill fill = fills_[there];
    if (fill.tokens < wanted) {
        unfilled.push_back({slot, fill.by(), request});
        primary_.put(slot, fills_.make(fill.by(), wanted));  // said once
    } else if (wanted < size) {
        primary_.put(slot, fills_.make(fill.by(), fill.tokens));  // a step will write the rest, or a load does now
    } else if (fill.is_complete) {
        return there;
    }
    return kNoFill;
}

std::vector<Unfilled> FillBooks::replaced(RequestId request, std::size_t place, Slot slot) {
    place_of(request, live(request), place) = slot;
    std::vector<Unfilled> unfilled;
    if (slot != kNowhere) {
        if (const FillIndex fill = take(slot, tokens_per_block_, request, unfilled); fill != kNoFill) {
            looks_.add(slot, fill, Occasion::reused, request);
        }
    }
    return unfilled;
}

void FillBooks::regrown(RequestId request, std::size_t place, Slot slot) {
    place_of(request, live(request), place) = slot;
    give(slot, request);
}

void FillBooks::shrunk(RequestId request, std::size_t blocks) {
    Sequence& sequence = live(request);
    sequence.slots.resize(std::min(sequence.slots.size(), blocks));
    sequence.complete = std::min(sequence.complete, blocks);
    sequence.taken = std::min(sequence.taken, blocks);
}

void FillBooks::left(RequestId request, std::size_t places_known) {
    const std::vector<Slot>& slots = live(request).slots;
    std::vector<std::optional<FillUse>> held(slots.size());
    for (std::size_t place = 0; place < std::min(slots.size(), places_known); ++place) {
        if (const FillIndex fill = primary_.at(slots[place]); fill != kNoFill) {
            held[place].emplace(fills_, fill);
        }
    }
    away_.insert_or_assign(request, std::move(held));
}

void FillBooks::came_back(RequestId request, std::vector<Slot> slots) {
    Sequence& sequence = live(request);
    const auto away = away_.extract(request);
    if (away.empty()) {
        throw std::invalid_argument("request " + std::to_string(request) + " came back, and it had not left");
    }
    sequence.slots = std::move(slots);
    for (std::size_t place = 0; place < sequence.slots.size(); ++place) {
        const Slot slot = sequence.slots[place];
        if (slot == kNowhere) {
            continue;
        }
        if (place >= away.mapped().size()) {
            give(slot, request);
            continue;
        }
        const std::optional<FillUse>& held = away.mapped()[place];
        if (!held) {
            primary_.forget(slot);
        } else if (primary_.at(slot) != held->index()) {
            primary_.put(slot, held->index());
            if (fills_[held->index()].is_complete) {
                looks_.add(slot, held->index(), Occasion::returned);
            }
        }
    }
}

void FillBooks::forget(std::span<const Slot> slots) {
    for (const Slot slot : slots) {
        primary_.forget(slot);
    }
}

void FillBooks::hold(std::span<const Slot> slots, std::span<const Slot> numbers) {
    check_numbers(slots, numbers);
    for (std::size_t at = 0; at < slots.size(); ++at) {
        if (slots[at] == kNowhere) {
            continue;
        }
        const std::size_t place = FilledSlots::checked(slots[at]);
        if (place >= holders_.size()) {
            holders_.resize(place + 1);
        }
        if (holders_[place]++ == 0 && !numbers.empty() && kept_.at(numbers[at]) != kNoFill) {
            primary_.put(slots[at], kept_.at(numbers[at]));
            kept_.forget(numbers[at]);
        }
    }
}

void FillBooks::let_go(std::span<const Slot> slots, std::span<const Slot> numbers) {
    check_numbers(slots, numbers);
    for (std::size_t at = 0; at < slots.size(); ++at) {
        const Slot slot = slots[at];
        if (slot == kNowhere) {
            continue;
        }
        const std::size_t place = FilledSlots::checked(slot);
        if (place >= holders_.size() || holders_[place] == 0) {
            throw std::invalid_argument("slot " + std::to_string(slot) +
                                        " is let go, and nobody has it; that somebody got it was not said");
        }
        if (--holders_[place] != 0) {
            continue;
        }
        if (!numbers.empty() && primary_.at(slot) != kNoFill) {
            kept_.put(numbers[at], primary_.at(slot));
        }
        primary_.forget(slot);
    }
}

void FillBooks::grown(RequestId request, std::span<const Slot> slots) {
    Sequence& sequence = live(request);
    for (const Slot slot : slots) {
        give(slot, request);
    }
    sequence.slots.insert(sequence.slots.end(), slots.begin(), slots.end());
}

void FillBooks::loaded(RequestId request, std::uint64_t begin, std::uint64_t end) {
    fill(request, live(request), begin, end, end);
}

void FillBooks::went_on(std::span<const Progress> all, bool holds) {
    for (const Progress& one : all) {
        if (holds) {
            hold(one.slots);
        }
        if (one.end > one.begin) {
            loaded(one.request, one.begin, one.end);
        }
        grown(one.request, one.slots);
    }
}

void FillBooks::written(const Write& write) {
    Sequence& sequence = live_[write.request];
    if (write.slots) {
        const auto first = static_cast<std::size_t>(write.begin / tokens_per_block_);
        const std::size_t known = sequence.slots.size();
        if (first > known) {
            throw std::invalid_argument("request " + std::to_string(write.request) + " has " + std::to_string(known) +
                                        " blocks, and a step writes from its block " + std::to_string(first) +
                                        " on; its admission or growth was not said");
        }
        for (std::size_t place = 0; place < write.slots->size(); ++place) {
            const Slot slot = (*write.slots)[place];
            if (first + place >= known || sequence.slots[first + place] != slot) {
                give(slot, write.request);
            }
        }
        sequence.slots.resize(first);
        sequence.slots.insert(sequence.slots.end(), write.slots->begin(), write.slots->end());
    }
    fill(write.request, sequence, write.begin, write.end, write.accepted);
}

std::vector<Slot> FillBooks::step(std::uint64_t number, std::span<const Write> writes, std::size_t free) {
    for (const Write& write : writes) {
        written(write);
    }
    return looks_.begin_step(number, free);
}

std::vector<Changed> FillBooks::arrived(std::span<const std::vector<std::uint64_t>> sendings) {
    std::vector<Changed> changed;
    for (const std::vector<std::uint64_t>& digests : sendings) {
        looks_.arrived(digests, changed);
    }
    return changed;
}

std::vector<Slot> FillBooks::released(RequestId request, std::size_t free) {
    return looks_.send_now(end(request), free);
}

// Looks at what it has filled.
std::vector<Look> FillBooks::end(RequestId request) {
    const auto ended = live_.extract(request);
    const bool was_away = away_.erase(request) > 0;
    std::vector<Look> looks;
    if (ended.empty() || was_away) {
        return looks;
    }
    const Sequence& sequence = ended.mapped();
    const std::size_t complete = std::min(sequence.complete, sequence.slots.size());
    for (std::size_t place = sequence.taken; place < complete; ++place) {
        const Slot slot = sequence.slots[place];
        if (is_filled_by(request, slot) && fills_[primary_.at(slot)].is_complete) {
            looks.push_back({slot, FillUse(fills_, primary_.at(slot)), Occasion::freed});
        }
    }
    return looks;
}

// These positions were written, and those below `kept` are kept for certain.
void FillBooks::fill(RequestId request, Sequence& sequence, std::uint64_t begin, std::uint64_t end,
                     std::uint64_t kept) {
    const std::uint32_t size = tokens_per_block_;
    const auto place_begin = static_cast<std::size_t>(begin / size);
    const auto complete = static_cast<std::size_t>(kept / size);
    const std::size_t first_place = std::min(sequence.complete, place_begin);
    sequence.taken = std::min(sequence.taken, place_begin);
    sequence.complete = std::max(first_place, complete);
    for (std::size_t place = first_place; place * size < end; ++place) {
        const Slot slot = place_of(request, sequence, place);
        if (place >= place_begin && slot != kNowhere) {
            const std::uint64_t from = place * size;
            fill_block(request, slot, static_cast<std::uint32_t>(std::max(begin, from) - from),
                       static_cast<std::uint32_t>(std::min<std::uint64_t>(end - from, size)));
        }
        if (place < complete && is_filled_by(request, slot)) {
            Fill& fill = fills_[primary_.at(slot)];
            if (fill.tokens == size && !fill.is_complete) {
                fill.is_complete = true;
                looks_.add(slot, primary_.at(slot), Occasion::filled);
            }
        }
    }
}

// Positions of one block were written. If nobody has written what stands before them, it will never be complete.
void FillBooks::fill_block(RequestId request, Slot slot, std::uint32_t first, std::uint32_t end) {
    const FillIndex there = primary_.at(slot);
    const std::uint32_t tokens = there == kNoFill ? 0 : fills_[there].tokens;
    if (tokens < first) {
        return;
    }
    if (!is_filled_by(request, slot) || tokens > first) {
        give(slot, request);
    }
    fills_[primary_.at(slot)].tokens = static_cast<std::uint16_t>(end & kTokensPerBlockMax);
}

// What a request gets is another fill, whatever was there. It may be passed by a window at once.
void FillBooks::give(Slot slot, RequestId request) {
    if (slot != kNowhere) {
        primary_.put(slot, fills_.make(request));
    }
}

bool FillBooks::is_filled_by(RequestId request, Slot slot) const {
    const FillIndex fill = primary_.at(slot);
    return fill != kNoFill && fills_[fill].by() == request;
}

FillBooks::Sequence& FillBooks::live(RequestId request) {
    const auto found = live_.find(request);
    if (found == live_.end()) {
        throw UnknownRequest(request);
    }
    return found->second;
}

Slot& FillBooks::place_of(RequestId request, Sequence& sequence, std::size_t place) {
    if (place >= sequence.slots.size()) {
        throw std::invalid_argument("request " + std::to_string(request) + " has " +
                                    std::to_string(sequence.slots.size()) + " blocks, and none at place " +
                                    std::to_string(place) + "; its growth was not said");
    }
    return sequence.slots[place];
}

std::span<const Slot> FillBooks::slots_of(RequestId request, std::size_t first) const {
    const auto found = live_.find(request);
    if (found == live_.end()) {
        throw UnknownRequest(request);
    }
    const std::span<const Slot> slots = found->second.slots;
    return slots.subspan(std::min(first, slots.size()));
}

const Fill* FillBooks::fill_at(Slot slot) const {
    const FillIndex fill = primary_.at(slot);
    return fill == kNoFill ? nullptr : &fills_[fill];
}

}  // namespace kvfix::canary
