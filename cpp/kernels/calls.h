// The work that kernels do, as plain structs. The CUDA kernel of the same name (kernels.cu) takes the struct as its
// only argument, and so does the reference of that name (reference.cc), which the simulated device runs. All tables are
// int32.
#pragma once

#include <cstdint>

namespace kvfix {

inline constexpr std::uint32_t kPoolsMax = 64;
inline constexpr std::int32_t kBadPage = -1;

// Per pool: K = page * scale, V = K + v_offset. A bad page gives 0 for both. This is upstream's V2 layout.
struct PageScale {
    std::int32_t scale[kPoolsMax];
    std::int32_t v_offset[kPoolsMax];
};

// The batch-ordered destination (pools, rows_max, 2, blocks). Its address is stable; rows from `rows` on stay untouched.
struct OffsetDestination {
    std::int32_t* data;
    std::uint64_t pool_stride;  // in elements
    std::uint32_t blocks;       // per plane of a row
};

// dst[p, r, 0, b] = scaled(staged[p, r, b]), and dst[p, r, 1, b] follows from it; b < width.
struct ExpandRows {
    OffsetDestination dst;
    const std::int32_t* staged;  // (pools, rows, width), contiguous, in device memory
    std::uint32_t pools, rows, width;
    PageScale scale;
};

// Like ExpandRows, but from row copy_index[r] of a table in pinned host memory, which it reads when it runs. This is
// upstream's racy V2 kernel, for control arms.
struct GatherHostRows {
    OffsetDestination dst;
    const std::int32_t* table;  // (pools, table_rows, 2, blocks); only plane 0 is read
    std::uint64_t table_pool_stride;
    std::uint32_t table_blocks;  // per plane of a row
    const std::int32_t* copy_index;
    std::uint32_t pools, rows, width;
    PageScale scale;
};

// Fills dst rows from rows of a table in device memory. planes = 2: both planes are copied as they are ("v1"). planes =
// 1: the K plane is scaled ("v2").
struct GatherDeviceRows {
    OffsetDestination dst;
    const std::int32_t* table;  // (pools, table_rows, planes, blocks)
    std::uint64_t table_pool_stride;
    std::uint32_t table_row_stride;
    const std::uint32_t* row_index;  // [rows]
    std::uint32_t pools, rows, width, planes;
    PageScale scale;
};

// Copies whole blocks, for when a DMA descriptor for each would cost more than the bytes.
struct BlockPair {
    std::uint64_t dst, src;  // addresses, 16-byte aligned
};
struct CopyBlocks {
    const BlockPair* pairs;  // in device memory, or pinned and held until the kernel has run
    std::uint32_t count;
    std::uint64_t bytes;    // size of each block, a multiple of 16
    std::uint32_t sms = 2;  // multiprocessors that the copy may take from compute
};
// If the GPU copies in bulk, a thread block of CopyBlocks has kCopyStages pieces of this size on their way.
inline constexpr std::uint32_t kCopyPieceBytes = 16 << 10;
inline constexpr std::uint32_t kCopyStages = 6;
inline constexpr std::uint32_t kCopySharedBytes = kCopyStages * kCopyPieceBytes;

// Digests blocks where they lie (digest.h). A block is `layers` stretches, one behind the other, each digested for itself,
// in `parts`. sums[(b * layers + l) * parts + p] = the summands of the p-th part of the pieces; whoever
// adds the parts up, and the stretch's bytes, has its digest.
struct DigestBlocks {
    const std::uint64_t*
        blocks;  // addresses, 16-byte aligned; themselves in pinned memory, held until the kernel has run
    std::uint64_t* sums;
    std::uint32_t count, layers, parts;
    std::uint64_t layer_bytes;  // a multiple of 16
    std::uint64_t key;
};
// As many thread blocks of DigestBlocks as a multiprocessor has registers for, with all their loads in flight.
inline constexpr std::uint32_t kDigestBlocksPerMultiprocessor = 4;

// words[0 .. count) = value. Stands for compute that writes a block.
struct FillWords {
    std::uint32_t* words;
    std::uint64_t count;
    std::uint32_t value;
};

}  // namespace kvfix
