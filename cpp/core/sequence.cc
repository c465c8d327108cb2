#include "core/sequence.h"

#include <algorithm>
#include <utility>

namespace kvfix {
namespace {

constexpr std::size_t kSpareMax = 1024;

void clear(Sequence& sequence) {
    sequence.request.reset();
    sequence.grown_tokens.clear();
    sequence.length = sequence.computed = 0;
    sequence.doubtful_from = kNone;
    for (HeldBlocks& held : sequence.windows) {
        held.shared.clear();
        held.tails.clear();
        held.left = held.sure = 0;
    }
    std::ranges::fill(sequence.cursors, StoreCursor{});
    sequence.stats = {};
}

}  // namespace

void Sequence::read_tokens(std::uint32_t position, std::span<TokenId> out) const {
    if (position < prompt_length()) {
        const auto prompt = std::span(request->tokens).subspan(position);
        const auto part = prompt.first(std::min(prompt.size(), out.size()));
        std::ranges::copy(part, out.begin());
        out = out.subspan(part.size());
        position = prompt_length();
    }
    if (!out.empty()) {
        std::ranges::copy(std::span(grown_tokens).subspan(position - prompt_length(), out.size()), out.begin());
    }
}

Sequence& SequenceTable::add(RequestPtr request, std::size_t windows) {
    std::unique_ptr<Sequence> sequence;
    if (spare_.empty()) {
        sequence = std::make_unique<Sequence>();
        sequence->windows.resize(windows);
        sequence->cursors.resize(windows);
    } else {
        sequence = std::move(spare_.back());
        spare_.pop_back();
    }
    sequence->request = std::move(request);
    return *live_.emplace(sequence->id(), std::move(sequence)).first->second;
}

void SequenceTable::remove(RequestId id) {
    auto node = live_.extract(id);
    if (spare_.size() < kSpareMax) {
        clear(*node.mapped());
        spare_.push_back(std::move(node.mapped()));
    }
}

std::vector<const Sequence*> SequenceTable::ordered() const {
    std::vector<const Sequence*> out;
    out.reserve(live_.size());
    for (const auto& [id, sequence] : live_) {
        out.push_back(sequence.get());
    }
    std::ranges::sort(out, {}, &Sequence::id);
    return out;
}

}  // namespace kvfix
