#include "kernels/reference.h"

#include <algorithm>

#include "kernels/digest.h"
#include "kernels/relaxed.h"

namespace kvfix {
namespace {

// Wraps around as the GPU's integers do: a page that a race has left behind may be any number.
std::int32_t wrapping(std::uint32_t value) { return static_cast<std::int32_t>(value); }

struct PlanePair {
    std::int32_t k;
    std::int32_t v;
};

PlanePair scaled(std::int32_t page, const PageScale& scale, std::uint32_t pool) {
    if (page == kBadPage) {
        return {0, 0};
    }
    const std::uint32_t k = static_cast<std::uint32_t>(page) * static_cast<std::uint32_t>(scale.scale[pool]);
    return {wrapping(k), wrapping(k + static_cast<std::uint32_t>(scale.v_offset[pool]))};
}

void store_pair(const OffsetDestination& dst, std::uint32_t pool, std::uint32_t row, std::uint32_t block,
                PlanePair pair) {
    std::int32_t* k_plane = dst.data + pool * dst.pool_stride + std::uint64_t{row} * 2 * dst.blocks;
    store_relaxed(k_plane + block, pair.k);
    store_relaxed(k_plane + dst.blocks + block, pair.v);
}

}  // namespace

void run_reference(const ExpandRows& call) {
    for (std::uint32_t pool = 0; pool < call.pools; ++pool) {
        for (std::uint32_t row = 0; row < call.rows; ++row) {
            const std::int32_t* pages = call.staged + (std::uint64_t{pool} * call.rows + row) * call.width;
            for (std::uint32_t block = 0; block < call.width; ++block) {
                store_pair(call.dst, pool, row, block, scaled(load_relaxed(pages + block), call.scale, pool));
            }
        }
    }
}

void run_reference(const GatherHostRows& call) {
    const std::int64_t row_stride = std::int64_t{2} * call.table_blocks;
    for (std::uint32_t pool = 0; pool < call.pools; ++pool) {
        for (std::uint32_t row = 0; row < call.rows; ++row) {
            const std::int64_t table_row = load_relaxed(call.copy_index + row);
            const std::int32_t* pages = call.table + pool * call.table_pool_stride + table_row * row_stride;
            for (std::uint32_t block = 0; block < call.width; ++block) {
                store_pair(call.dst, pool, row, block, scaled(load_relaxed(pages + block), call.scale, pool));
            }
        }
    }
}

void run_reference(const GatherDeviceRows& call) {
    // The table's planes may be wider or narrower than the destination's.
    const std::uint32_t table_blocks = call.table_row_stride / call.planes;
    for (std::uint32_t pool = 0; pool < call.pools; ++pool) {
        for (std::uint32_t row = 0; row < call.rows; ++row) {
            const std::uint64_t table_row = load_relaxed(call.row_index + row);
            const std::int32_t* k_plane =
                call.table + pool * call.table_pool_stride + table_row * call.table_row_stride;
            for (std::uint32_t block = 0; block < call.width; ++block) {
                const std::int32_t k = load_relaxed(k_plane + block);
                const PlanePair pair = call.planes == 2 ? PlanePair{k, load_relaxed(k_plane + table_blocks + block)}
                                                        : scaled(k, call.scale, pool);
                store_pair(call.dst, pool, row, block, pair);
            }
        }
    }
}

void run_reference(const CopyBlocks& call) {
    for (std::uint32_t i = 0; i < call.count; ++i) {
        copy_relaxed(load_relaxed(&call.pairs[i].dst), load_relaxed(&call.pairs[i].src), call.bytes);
    }
}

void run_reference(const DigestBlocks& call) {
    const std::uint64_t pieces_per_layer = call.layer_bytes / sizeof(DigestPiece);
    const std::uint64_t pieces_per_part = (pieces_per_layer + call.parts - 1) / call.parts;
    const std::uint64_t sums = std::uint64_t{call.count} * call.layers * call.parts;
    for (std::uint64_t i = 0; i < sums; ++i) {
        const std::uint64_t layer = i / call.parts;
        const std::uint64_t begin = i % call.parts * pieces_per_part;
        const auto* stretch = reinterpret_cast<const std::uint64_t*>(load_relaxed(&call.blocks[layer / call.layers]) +
                                                                     layer % call.layers * call.layer_bytes);
        std::uint64_t sum = 0;
        for (std::uint64_t place = begin; place < std::min(begin + pieces_per_part, pieces_per_layer); ++place) {
            const DigestPiece piece{load_relaxed(stretch + 2 * place), load_relaxed(stretch + 2 * place + 1)};
            sum += digest_summand(call.key, place, piece);
        }
        store_relaxed(call.sums + i, sum);
    }
}

void run_reference(const FillWords& call) {
    for (std::uint64_t i = 0; i < call.count; ++i) {
        store_relaxed(call.words + i, call.value);
    }
}

}  // namespace kvfix
