#include "canary/looks.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvfix::canary {

void Looks::wait(Look look) {
    if (due_.size() < limits_.due) {
        due_.push_back(std::move(look));
    } else {
        ++missed_;
    }
}

std::vector<Slot> Looks::begin_step(std::uint64_t step, std::size_t free) {
    step_ = step;
    left_ = limits_.of_step;
    std::vector<Look> looks;
    for (const std::size_t room = std::min(left_, free); !due_.empty() && looks.size() < room; due_.pop_front()) {
        if (is_there(due_.front())) {
            looks.push_back(std::move(due_.front()));
        } else {
            ++missed_;
        }
    }
    left_ -= looks.size();
    const auto is_known = [&](Slot slot) {
        const FillIndex fill = primary_->at(slot);
        return fill != kNoFill && (*fills_)[fill].is_known;
    };
    for (const Slot slot : rounds_.draw(std::min(limits_.live, free - looks.size()), is_known)) {
        looks.push_back({slot, FillUse(*fills_, primary_->at(slot)), Occasion::live});
    }
    return send(std::move(looks));
}

std::vector<Slot> Looks::send_now(std::vector<Look> looks, std::size_t free) {
    const std::size_t room = std::min({left_, free, looks.size()});
    for (std::size_t later = room; later < looks.size(); ++later) {
        wait(std::move(looks[later]));
    }
    looks.erase(looks.begin() + static_cast<std::ptrdiff_t>(room), looks.end());
    left_ -= room;
    return send(std::move(looks));
}

std::vector<Slot> Looks::send(std::vector<Look> looks) {
    std::vector<Slot> slots(looks.size());
    std::ranges::transform(looks, slots.begin(), &Look::slot);
    if (!looks.empty()) {
        on_way_.push_back({std::move(looks), step_});
    }
    return slots;
}

void Looks::arrived(std::span<const std::uint64_t> digests, std::vector<Changed>& changed) {
    const std::size_t wanted = on_way_.empty() ? 0 : on_way_.front().looks.size() * fills_->layers();
    if (on_way_.empty() || digests.size() != wanted) {
        throw std::invalid_argument(std::to_string(digests.size()) + " digests arrived where " +
                                    std::to_string(wanted) +
                                    " were wanted; not all that was asked for was sent, or in another order");
    }
    const Sent sent = std::move(on_way_.front());
    on_way_.pop_front();
    for (const Look& look : sent.looks) {
        if (look.occasion != Occasion::live) {
            rounds_.add(look.slot);
        }
        compare(look, digests.first(fills_->layers()), sent.step, changed);
        digests = digests.subspan(fills_->layers());
    }
}

void Looks::compare(const Look& look, std::span<const std::uint64_t> digests, std::uint64_t step,
                    std::vector<Changed>& changed) {
    Fill& fill = (*fills_)[look.fill.index()];
    const std::span<std::uint64_t> known = fills_->digests(look.fill.index());
    const auto now = static_cast<std::uint32_t>(step);
    if (!fill.is_known) {
        std::ranges::copy(digests, known.begin());
        fill.is_known = true;
        fill.right_at = now;
        ++taken_;
        return;
    }
    ++compared_[static_cast<std::size_t>(look.occasion)];
    if (std::ranges::equal(known, digests)) {
        fill.has_changed = false;
        fill.right_at = now;
    } else if (!fill.has_changed) {
        fill.has_changed = true;
        std::vector<std::uint32_t> layers;
        for (std::uint32_t layer = 0; layer < known.size(); ++layer) {
            if (known[layer] != digests[layer]) {
                layers.push_back(layer);
            }
        }
        changed.push_back({look.slot, std::move(layers), look.occasion, fill.by(), look.reader,
                           step - static_cast<std::uint32_t>(now - fill.right_at), step});
    }
}

}  // namespace kvfix::canary
