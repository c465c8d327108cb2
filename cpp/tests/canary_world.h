// A cache that does everything right, at random, and rewrites blocks in every way that is meant: a finding is false.
//
// Each write brings other values, also where a position is computed again: kernels do not give the same bits twice. The
// device does at once what it is given, and digests of what was asked for arrive later. A position is a layer here.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "canary/fill_books.h"

namespace kvfix::testing {

using canary::Slot;

class CanaryWorld {
  public:
    explicit CanaryWorld(std::uint64_t seed)
        : random_(seed),
          books_({.tokens_per_block = kSize,
                  .layers = kSize,
                  .knows_all = true,
                  .looks = {.due = 1 << 14, .of_step = 6, .live = 2},
                  .seed = seed}) {}

    void play(int steps) {
        for (int step = 1; step <= steps; ++step) {
            act(below(6));
            send(books_.step(static_cast<std::uint64_t>(step), {}, static_cast<std::size_t>(below(8))));
            if (below(2) == 0) {
                receive();
            }
            check();
        }
        receive();
        const auto& compared = books_.looks().compared();
        for (std::size_t occasion = 1; occasion < compared.size(); ++occasion) {
            done[canary::kOccasions[occasion]] += static_cast<int>(compared[occasion]);
        }
        done["filled"] += static_cast<int>(books_.looks().taken());
    }

    std::vector<std::string> findings;
    std::map<std::string, int> done;

  private:
    static constexpr std::uint32_t kSize = 4;  // tokens per block
    static constexpr int kSlots = 16;
    static constexpr int kHostSlots = 8;

    struct Place {
        bool is_host;
        Slot slot;
        auto operator<=>(const Place&) const = default;
    };
    struct Chain {  // a cached prefix
        std::vector<Place> places;
        std::uint64_t tokens;
    };
    struct Live {
        RequestId request;
        std::vector<Slot> slots;
        std::uint64_t begin;         // the next position to be written
        std::uint64_t own_from;      // positions before were computed by others
        std::uint64_t loading = 0;   // positions that a connector writes
        std::uint64_t drafted = 0;   // behind the last position that a step wrote
        bool goes_round = false;     // a window that writes over its own oldest blocks
        std::uint64_t furthest = 0;  // a step that writes before is heard at once
        bool is_untold = false;      // of the last step only its slots were heard
        std::uint64_t untold_from = 0;
    };
    using ChainPtr = std::shared_ptr<Chain>;

    int below(int end) { return std::uniform_int_distribution<int>(0, end - 1)(random_); }
    std::uint64_t between(std::uint64_t begin, std::uint64_t end) {
        return std::uniform_int_distribution<std::uint64_t>(begin, end - 1)(random_);
    }
    bool happens(double share) { return std::uniform_real_distribution<double>(0, 1)(random_) < share; }
    template <class Item>
    const Item& any_of(const std::vector<Item>& items) {
        return items[static_cast<std::size_t>(below(static_cast<int>(items.size())))];
    }
    static std::uint64_t blocks_of(std::uint64_t tokens) { return (tokens + kSize - 1) / kSize; }

    // ---- what the canary does ----

    void send(const std::vector<Slot>& slots) {
        std::vector<std::uint64_t> digests;
        for (const Slot slot : slots) {
            std::ranges::copy(of({false, slot}), std::back_inserter(digests));
        }
        if (!slots.empty()) {
            on_way_.push_back(std::move(digests));
        }
    }
    void receive() {
        for (const canary::Changed& each : books_.arrived(on_way_)) {
            findings.push_back("slot " + std::to_string(each.slot) + " has changed (seen: " +
                               canary::kOccasions[static_cast<std::size_t>(each.occasion)] + ")");
        }
        on_way_.clear();
    }
    // What is complete is known to be so: a canary that looks at nothing is silent, too.
    void check() {
        std::map<Slot, int> held;
        for (const auto& [_, one] : live_) {
            for (const Slot slot : one.slots) {
                ++held[slot];
            }
        }
        for (const auto& [_, one] : live_) {
            const bool is_told = one.loading == 0 && !one.goes_round && !one.is_untold;
            for (std::uint64_t place = one.own_from / kSize; is_told && place < one.begin / kSize; ++place) {
                const canary::Fill* fill = books_.fill_at(one.slots[place]);
                if (held[one.slots[place]] == 1 && (fill == nullptr || !fill->is_complete)) {
                    findings.push_back("slot " + std::to_string(one.slots[place]) + " is taken for incomplete");
                }
            }
        }
    }

    // ---- what the server does ----

    void act(int number) {
        switch (number) {
            case 0:
            case 1:
                return admit();
            case 2:
            case 3:
                return step();
            case 4:
                return relocate();
            default:
                return release();
        }
    }

    std::array<std::uint64_t, kSize>& of(Place place) { return memory_[place]; }

    void write(const std::vector<Slot>& slots, std::uint64_t begin, std::uint64_t end) {
        for (std::uint64_t position = begin; position < end; ++position) {
            of({false, slots[position / kSize]})[position % kSize] = random_();
        }
    }

    void admit() {
        if (live_.size() == 2) {
            return;
        }
        std::vector<Slot> slots;
        std::uint64_t reused = !cached_.empty() && happens(0.8) ? reuse(slots) : 0;
        const std::uint64_t length = reused + between(1, 7);
        while (slots.size() * kSize < length) {
            slots.push_back(free_slot(slots));
        }
        const RequestId request = ++requests_;
        for (const canary::Unfilled& each : books_.admitted(request, slots, reused, false)) {
            findings.push_back("slot " + std::to_string(each.slot) + " was never filled, and is reused");
        }
        Live& one = live_[request] = {.request = request, .slots = slots, .begin = reused, .own_from = reused};
        if (std::exchange(shares_part_, false)) {
            one.furthest = blocks_of(reused) * kSize;
        } else if (happens(0.3)) {
            one.loading = length;
            ++done["loads"];
        }
    }

    // Takes a cached prefix: blocks as they are, and of the last perhaps a part.
    std::uint64_t reuse(std::vector<Slot>& slots) {
        const ChainPtr chain = any_of(cached_);
        std::uint64_t reused = any_of(std::vector{between(0, chain->tokens), chain->tokens - 1, chain->tokens});
        for (std::uint64_t number = 0; number < blocks_of(reused); ++number) {
            if (number >= chain->places.size()) {  // evicted to make room for its beginning
                reused = number * kSize;
                break;
            }
            slots.push_back(on_device(*chain, number, slots));
        }
        if (slots.size() > chain->places.size()) {
            slots.resize(chain->places.size());
            reused = std::min<std::uint64_t>(reused, chain->places.size() * kSize);
        }
        if (reused % kSize != 0) {
            take_part(*chain, slots, reused % kSize);
        }
        return reused;
    }

    // The rest of the last block will be written: in a copy, in the leaf that is taken over, or in place, as the last
    // token of an exact repeat.
    void take_part(Chain& chain, std::vector<Slot>& slots, std::uint64_t tokens) {
        const Slot last = slots.back();
        const bool is_repeat = tokens == kSize - 1 && chain.tokens >= slots.size() * kSize;
        const auto has = [&](const auto& each) { return std::ranges::count(each.second.slots, last) > 0; };
        const bool is_held = std::ranges::any_of(live_, has);
        // Two do not write to one block unheard.
        const bool is_written = std::ranges::any_of(
            live_, [&](const auto& each) { return has(each) && each.second.begin < slots.size() * kSize; });
        if (is_repeat && !is_written && happens(0.5)) {
            shares_part_ = is_held;
            ++done["repeats"];
        } else if (is_held || happens(0.5)) {
            slots.back() = free_slot(slots);
            copy(canary::Copy::within_device, {false, last}, {false, slots.back()}, tokens);
        } else {
            ++done["taken over"];
            cut_where({false, last});
            cut(chain, slots.size() - 1);
        }
    }

    Slot on_device(Chain& chain, std::uint64_t number, const std::vector<Slot>& kept) {
        const Place place = chain.places[number];
        if (!place.is_host) {
            return place.slot;
        }
        const Slot slot = free_slot(kept);
        copy(canary::Copy::onboard, place, {false, slot}, tokens_in(place));
        for (const ChainPtr& each : cached_) {
            std::ranges::replace(each->places, place, Place{false, slot});
        }
        return slot;
    }

    Slot free_slot(const std::vector<Slot>& kept) {
        std::vector<Slot> free;
        for (Slot slot = 0; slot < kSlots; ++slot) {
            const auto has = [&](const std::vector<Slot>& slots) { return std::ranges::count(slots, slot) > 0; };
            if (!has(kept) && std::ranges::none_of(live_, [&](const auto& each) { return has(each.second.slots); })) {
                free.push_back(slot);
            }
        }
        const Place place{false, free.empty() ? next_slot_++ : any_of(free)};
        if (users_of(place).empty()) {
            return place.slot;
        }
        std::vector<Slot> room;
        for (Slot slot = 0; slot < kHostSlots; ++slot) {
            if (users_of({true, slot}).empty()) {
                room.push_back(slot);
            }
        }
        if (!room.empty() && happens(0.7)) {
            const Place target{true, any_of(room)};
            copy(canary::Copy::offload, place, target, tokens_in(place));
            for (const ChainPtr& each : cached_) {
                std::ranges::replace(each->places, place, target);
            }
        } else {
            cut_where(place);
        }
        return place.slot;
    }

    std::vector<ChainPtr> users_of(Place place) {
        std::vector<ChainPtr> users;
        std::ranges::copy_if(cached_, std::back_inserter(users),
                             [&](const ChainPtr& each) { return std::ranges::count(each->places, place) > 0; });
        return users;
    }
    static std::uint64_t number_of(const Chain& chain, Place place) {
        return static_cast<std::uint64_t>(std::ranges::find(chain.places, place) - chain.places.begin());
    }
    // The most that a cached prefix has there.
    std::uint64_t tokens_in(Place place) {
        std::uint64_t most = 0;
        for (const ChainPtr& each : users_of(place)) {
            most = std::max(most, std::min<std::uint64_t>(kSize, each->tokens - number_of(*each, place) * kSize));
        }
        return most;
    }

    void copy(canary::Copy kind, Place source, Place target, std::uint64_t tokens) {
        constexpr std::array kNames = {"onboard", "offload", "copy"};
        ++done[kNames[static_cast<std::size_t>(kind)]];
        std::ranges::copy(std::span(of(source)).first(tokens), of(target).begin());
        books_.moved(kind, source.slot, target.slot, tokens);
    }

    void cut_where(Place place) {
        for (const ChainPtr& each : users_of(place)) {
            cut(*each, number_of(*each, place));
        }
    }
    void cut(Chain& chain, std::uint64_t number) {
        chain.places.resize(std::min<std::uint64_t>(chain.places.size(), number));
        chain.tokens = std::min<std::uint64_t>(chain.tokens, number * kSize);
        std::erase_if(cached_, [](const ChainPtr& each) { return each->tokens == 0; });
    }

    void step() {
        for (auto& [_, one] : live_) {
            if (one.loading != 0) {
                load(one);
            } else {
                generate(one);
            }
        }
    }

    void generate(Live& one) {
        tell(one);
        if (happens(0.1) && !one.goes_round) {  // a load has failed: compute it again
            one.begin = between(one.own_from, one.begin + 1);
            ++done["again"];
        }
        const std::uint64_t certain = one.begin + any_of(std::vector<std::uint64_t>{1, 2, kSize, 5});
        const std::uint64_t end = certain + any_of(std::vector<std::uint64_t>{0, 0, 3, 6});
        while (one.slots.size() * kSize < end) {
            const bool is_cyclic = one.slots.size() > 3 && one.own_from == 0 && happens(0.1);
            one.slots.push_back(is_cyclic ? one.slots[one.slots.size() - 4] : free_slot(one.slots));
            one.goes_round |= is_cyclic;
            done["cyclic"] += is_cyclic ? 1 : 0;
        }
        write(one.slots, one.begin, end);
        hear(one, end, certain);
        one.begin = certain;
        one.drafted = end;
        one.furthest = std::max(one.furthest, end);
        if (end > certain && happens(0.5)) {
            one.slots.resize(blocks_of(certain));  // rewound across a block
            ++done["rewound"];
        }
    }

    // All at once; or slots first, and then what was written and is kept, perhaps in front of the next step alone, as
    // beside another's manager.
    void hear(Live& one, std::uint64_t end, std::uint64_t certain) {
        if (end > certain || happens(0.5)) {
            const auto first = one.slots.begin() + static_cast<std::ptrdiff_t>(one.begin / kSize);
            books_.step(
                0,
                std::vector{canary::Write{one.request, std::vector(first, one.slots.end()), one.begin, end, certain}},
                0);
            return;
        }
        const std::span<const Slot> known = books_.slots_of(one.request);
        const auto same = static_cast<std::size_t>(std::ranges::mismatch(known, one.slots).in1 - known.begin());
        books_.shrunk(one.request, std::min(same, one.slots.size()));
        books_.grown(one.request, std::span<const Slot>(one.slots).subspan(same));
        ++done["slots first"];
        if (one.begin < one.furthest || happens(0.5)) {
            books_.loaded(one.request, one.begin, certain);
        } else {
            one.is_untold = true;
            one.untold_from = one.begin;
        }
    }
    void tell(Live& one) {
        if (std::exchange(one.is_untold, false)) {
            books_.loaded(one.request, one.untold_from, one.begin);
        }
    }

    // Accepted drafts are moved together between two steps: what is behind the certain positions may change.
    void relocate() {
        for (const auto& [_, one] : live_) {
            if (one.begin < one.drafted && one.drafted <= one.slots.size() * kSize) {
                write(one.slots, one.begin, one.drafted);
                ++done["relocated"];
            }
        }
    }

    // Half of it arrives in one step, and all of it in another.
    void load(Live& one) {
        write(one.slots, one.begin, one.loading);
        if (happens(0.5)) {
            books_.loaded(one.request, one.begin, one.loading);
            one.begin = one.furthest = std::exchange(one.loading, 0);
        }
    }

    void release() {
        if (live_.empty()) {
            return;
        }
        const auto longest =
            std::ranges::max_element(live_, {}, [](const auto& each) { return each.second.slots.size(); });
        Live one = longest->second;
        tell(one);
        live_.erase(longest);
        send(books_.released(one.request, 8));
        if (one.begin != 0 && one.loading == 0 && !one.goes_round && happens(0.8)) {
            // Some servers do not keep the last one.
            const std::uint64_t tokens = std::max<std::uint64_t>(1, one.begin - between(0, 2));
            cached_.push_back(std::make_shared<Chain>(Chain{{}, tokens}));
            for (std::uint64_t number = 0; number < blocks_of(tokens); ++number) {
                cached_.back()->places.push_back({false, one.slots[number]});
            }
        }
    }

    std::mt19937_64 random_;
    canary::FillBooks books_;
    std::map<Place, std::array<std::uint64_t, kSize>> memory_;
    std::map<RequestId, Live> live_;
    std::vector<ChainPtr> cached_;
    std::vector<std::vector<std::uint64_t>> on_way_;
    bool shares_part_ = false;  // the next request, with one that has computed it
    RequestId requests_ = 0;
    Slot next_slot_ = kSlots;  // of a server that has run out of them
};

}  // namespace kvfix::testing
