#include "fuzz/world/port.h"

namespace kvfix::world {

void append(Words&, const Nothing&) {}

void append(Words& words, const BatchAdmission& batch) {
    for (const Admission& one : batch.admitted) {
        words.insert(words.end(), {one.request_id, one.tokens_reused, one.tokens_new, one.blocks_reused,
                                   one.blocks_onboarded, one.blocks_new});
    }
    words.insert(words.end(), batch.deferred.begin(), batch.deferred.end());
}

void append(Words& words, const TransferBatch& batch) {
    words.push_back(batch.ticket);
    for (const TransferItem& item : batch.items) {
        words.insert(words.end(), {static_cast<std::uint64_t>(item.kind), number(item.slot_src), number(item.slot_dst),
                                   item.tokens, number(item.block_id), item.window_size.value_or(0)});
    }
}

void append(Words& words, const std::vector<std::uint64_t>& numbers) {
    words.insert(words.end(), numbers.begin(), numbers.end());
}

void append(Words& words, const std::vector<BlockId>& ids) {
    for (const BlockId id : ids) {
        words.push_back(number(id));
    }
}

void append(Words& words, const std::vector<PinnedSlot>& slots) {
    for (const PinnedSlot& slot : slots) {
        words.insert(words.end(), {number(slot.slot), static_cast<std::uint64_t>(slot.tier)});
    }
}

void append(Words& words, const std::vector<BlockEvent>& events) {
    for (const BlockEvent& event : events) {
        words.insert(
            words.end(),
            {static_cast<std::uint64_t>(event.kind), event.event_id, event.block_hash.first, event.block_hash.second,
             event.parent_hash.value_or(BlockHash{}).first, static_cast<std::uint64_t>(event.lora_id.value_or(0)),
             static_cast<std::uint64_t>(event.tier), event.priority, event.window_size.value_or(0)});
        words.insert(words.end(), event.tokens.begin(), event.tokens.end());
    }
}

}  // namespace kvfix::world
