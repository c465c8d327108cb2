#include "core/sequence.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/steps.h"

namespace kvfix {
namespace {

constexpr std::size_t kSpareMax = 1024;

void clear(Sequence& sequence) {
    sequence.request.reset();
    sequence.grown_tokens.clear();
    sequence.length = sequence.computed = sequence.claimed = 0;
    sequence.hashes.clear();
    sequence.doubtful_from = kNone;
    sequence.suspended = false;
    for (HeldBlocks& held : sequence.windows) {
        held.shared.clear();
        held.tails.clear();
        held.left = held.sure = held.kept = held.room = 0;
        held.rolls = false;
        held.digest.clear();
    }
    std::ranges::fill(sequence.cursors, StoreCursor{});
    sequence.stats = {};
    sequence.grown_digest.clear();
    sequence.request_digest = sequence.digest = 0;
}

}  // namespace

std::uint64_t HeldBlocks::digest_of_held() {
    return digest.value([this] {
        const auto add = [this](std::uint32_t beam, std::size_t begin, const std::vector<BlockIndex>& blocks) {
            for (std::size_t i = 0; i < blocks.size(); ++i) {
                if (blocks[i] != kNone) {
                    digest.add(beam, begin + i, blocks[i]);
                }
            }
        };
        add(0, 0, shared);
        for (std::uint32_t beam = 0; beam < tails.size(); ++beam) {
            add(beam, shared.size(), tails[beam]);
        }
    });
}

std::uint64_t Sequence::digest_of_grown() {
    return grown_digest.value([this] {
        for (std::size_t i = 0; i < grown_tokens.size(); ++i) {
            grown_digest.add(i, grown_tokens[i]);
        }
    });
}

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

void Sequence::refuse_suspended() const {
    throw std::invalid_argument("request " + std::to_string(id()) +
                                " is suspended and holds no primary block: resume it first");
}

void Sequence::forget(std::uint32_t position, std::uint32_t tokens_per_block) {
    hashes.resize(std::min<std::size_t>(hashes.size(), position / tokens_per_block));
    for (; known() > position; grown_tokens.pop_back()) {
        grown_digest.remove(grown_tokens.size() - 1, grown_tokens.back());
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
    sequence->prompt_tokens = request->num_tokens();
    sequence->beams = request->beam_width;
    sequence->request = std::move(request);
    note_change(*sequence);
    const RequestId id = sequence->id();
    return *live_.emplace(id, std::move(sequence)).first->second;
}

void SequenceTable::remove(RequestId id) {
    auto node = live_.extract(id);
    ++ended_;
    forget_change(*node.mapped());
    digest_.remove(node.mapped()->digest);
    if (spare_.size() < kSpareMax) {
        clear(*node.mapped());
        spare_.push_back(std::move(node.mapped()));
    }
}

void SequenceTable::forget_change(Sequence& sequence) {
    const std::uint32_t at = std::exchange(sequence.changed_at, kNone);
    if (at != kNone) {
        changed_[at] = changed_.back();
        changed_[at]->changed_at = at;
        changed_.pop_back();
        sequence.changed_at = kNone;
    }
}

std::vector<const Sequence*> SequenceTable::ordered() const {
    std::vector<const Sequence*> out;
    out.reserve(live_.size());
    for (const auto& [id, sequence] : live_) {
        KVFIX_STEP();
        out.push_back(sequence.get());
    }
    std::ranges::sort(out, {}, &Sequence::id);
    return out;
}

}  // namespace kvfix
