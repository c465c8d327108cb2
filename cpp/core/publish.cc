#include "core/publish.h"

#include <utility>

namespace kvfix {

void publish(State& state, const Window& window, EventKind kind, BlockIndex block, Tier tier,
             std::optional<std::int64_t> lora_id) {
    const Block& record = window.blocks[block];
    if (!state.events.wanted() || !record.in_tree || record.num_tokens != state.tokens_per_block()) {
        return;
    }
    BlockEvent event{.kind = kind,
                     .block_hash = record.hash,
                     .parent_hash = std::nullopt,
                     .tokens = {},
                     .lora_id = lora_id,
                     .tier = tier,
                     .priority = record.priority,
                     .window_size = window.config.window_size};
    if (!is_root(record.parent)) {
        event.parent_hash = window.blocks[record.parent.block()].hash;
    }
    if (kind == EventKind::stored) {
        const auto tokens = window.blocks.content(block);
        event.tokens.assign(tokens.begin(), tokens.end());
    }
    state.events.record(std::move(event));
}

}  // namespace kvfix
