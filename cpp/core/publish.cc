#include "core/publish.h"

#include <utility>

namespace kvfix {

void publish_wanted(State& state, const Window& window, EventKind kind, BlockIndex block, Tier tier,
                    const Request* request) {
    const Block& record = window.blocks[block];
    if (!record.in_tree || record.num_tokens != state.tokens_per_block()) {
        return;
    }
    BlockEvent event{.kind = kind,
                     .block_hash = window.tree.block_hash(block),
                     .parent_hash = std::nullopt,
                     .tokens = {},
                     .lora_id = std::nullopt,
                     .salt = {},
                     .extra_keys = {},
                     .tokens_per_block = state.tokens_per_block(),
                     .tier = tier,
                     .priority = record.priority,
                     .window_size = window.config.window_size};
    event.parent_hash = window.tree.parent_hash(block);
    if (kind == EventKind::stored) {
        event.lora_id = request->lora_id;
        event.salt = request->salt;
        event.extra_keys = read_extras(window.blocks.extras(block));
        const auto tokens = window.blocks.content(block);
        event.tokens.assign(tokens.begin(), tokens.end());
    }
    state.events.record(std::move(event));
}

}  // namespace kvfix
