// Results of the calls of a BlockManager: plain values, copied out under its lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/block_hash.h"
#include "core/transfer_ledger.h"
#include "core/types.h"

namespace kvfix {

struct Admission {
    RequestId request_id = 0;
    std::uint64_t tokens_reused = 0;
    std::uint64_t tokens_new = 0;
    std::uint64_t blocks_reused = 0;
    std::uint64_t blocks_onboarded = 0;
    std::uint64_t blocks_new = 0;
};

struct BatchAdmission {
    std::vector<Admission> admitted;
    std::vector<RequestId> deferred;
};

struct PrefixReuse {
    std::uint64_t tokens = 0;
    std::uint64_t blocks_primary = 0;
    std::uint64_t blocks_host = 0;
};

struct TransferItem {
    TransferKind kind;
    SlotIndex slot_src;
    SlotIndex slot_dst;
    std::uint32_t tokens;
    BlockId block_id;
    WindowSize window_size;
};

struct TransferBatch {
    Ticket ticket = 0;
    std::vector<TransferItem> items;
};

struct PinnedSlot {
    SlotIndex slot;
    Tier tier;
};

// A caller's int32 table (windows, rows, 2, blocks), C-contiguous.
struct OffsetTable {
    std::int32_t* data;
    std::size_t windows;
    std::size_t rows;
    std::size_t blocks;
};

struct OffsetScale {
    std::int32_t scale = 1;
    std::int32_t v_offset = 0;
};

// [request][beam][block]; -1 where the block has left the window.
using BlockIdTable = std::vector<std::vector<std::int64_t>>;

}  // namespace kvfix
