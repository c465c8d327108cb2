#include "core/keep.h"

#include "core/check.h"
#include "core/review.h"

namespace kvfix::keep {
namespace {

void move_to(State& state, Window& window, BlockIndex block, std::size_t tier) {
    KeptBlock& kept = window.kept.at(block);
    --window.blocks[block].locks[kept.tier];
    ++window.blocks[block].locks[tier];
    kept.tier = tier;
    review(state, window, block);
}

}  // namespace

void begin(State& state, Window& window, BlockIndex block, std::size_t tier, RequestId keeper) {
    check(window.blocks[block].has(tier), "a block is kept in a tier where it has no slot");
    check(window.keepers.emplace(block, keeper).second, "a suspended sequence keeps a block twice");
    const auto [kept, first] = window.kept.try_emplace(block, KeptBlock{.sequences = 0, .tier = tier});
    ++kept->second.sequences;
    if (first) {
        ++window.blocks[block].locks[tier];
        review(state, window, block);
    } else if (kept->second.tier != tier) {
        move_to(state, window, block, tier);
    }
}

void end(State& state, Window& window, BlockIndex block, RequestId keeper) {
    const auto kept = window.kept.find(block);
    check(kept != window.kept.end() && window.keepers.erase({block, keeper}) != 0,
          "a block is kept by fewer suspended sequences than there are");
    if (--kept->second.sequences == 0) {
        --window.blocks[block].locks[kept->second.tier];
        window.kept.erase(kept);
        review(state, window, block);
    }
}

void fall_back(State& state, Window& window, BlockIndex block) {
    if (const auto kept = window.kept.find(block); kept != window.kept.end() && kept->second.tier == kHost) {
        move_to(state, window, block, kPrimary);
    }
}

}  // namespace kvfix::keep
