// The CUDA kernels. Each has the name of the struct of calls.h that it takes, does what reference.cc does, and is
// correct for any launch shape; cuda_launch.cc chooses the shape for speed alone. Rows move in 16-byte pieces while
// both sides are aligned, and otherwise entry by entry, as does the end of a row. So nothing past `rows` or `width` is
// touched.
#include "kernels/bulk_copy.cuh"
#include "kernels/calls.h"
#include "kernels/digest.h"

using kvfix::BlockPair;
using kvfix::OffsetDestination;

namespace {

// The number of 16-byte pieces that a thread of CopyBlocks loads before it stores the first. They hide the latency of
// the link.
constexpr std::uint32_t kLoadsInFlight = 8;
constexpr std::uint32_t kWarp = 32;
constexpr std::uint32_t kCopyThreadsMax = 1024;
// The same of DigestBlocks.
constexpr std::uint32_t kDigestLoads = 4;
constexpr std::uint32_t kDigestThreadsMax = 256;

__device__ bool aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % sizeof(int4) == 0; }

template <typename T>
__device__ int4* pieces(T* address) {
    return reinterpret_cast<int4*>(address);
}

template <typename T>
__device__ const int4* pieces(const T* address) {
    return reinterpret_cast<const int4*>(address);
}

// Computes a page's entries in the K plane and in the V plane. Unsigned, because they wrap around.
struct Scaling {
    std::uint32_t scale;
    std::uint32_t v_offset;

    __device__ Scaling(const kvfix::PageScale& by_pool, std::uint32_t pool)
        : scale(static_cast<std::uint32_t>(by_pool.scale[pool])),
          v_offset(static_cast<std::uint32_t>(by_pool.v_offset[pool])) {}

    __device__ int k(int page) const {
        return page == kvfix::kBadPage ? 0 : static_cast<int>(static_cast<std::uint32_t>(page) * scale);
    }
    __device__ int v(int page) const {
        return page == kvfix::kBadPage ? 0 : static_cast<int>(static_cast<std::uint32_t>(page) * scale + v_offset);
    }
};

// The number of this thread among those of its row. blockIdx.y and threadIdx.x walk along the row.
__device__ std::uint32_t place_in_row() { return blockIdx.y * blockDim.x + threadIdx.x; }
__device__ std::uint32_t threads_per_row() { return gridDim.y * blockDim.x; }

// Computes K and V of one row from its pages.
__device__ void expand_row(std::int32_t* k, std::int32_t* v, const std::int32_t* pages, std::uint32_t width,
                           const Scaling& scaling) {
    const bool in_pieces = aligned(k) && aligned(v) && aligned(pages);
    const std::uint32_t whole = in_pieces ? width / 4 : 0;
    for (std::uint32_t i = place_in_row(); i < whole; i += threads_per_row()) {
        const int4 page = pieces(pages)[i];
        pieces(k)[i] = {scaling.k(page.x), scaling.k(page.y), scaling.k(page.z), scaling.k(page.w)};
        pieces(v)[i] = {scaling.v(page.x), scaling.v(page.y), scaling.v(page.z), scaling.v(page.w)};
    }
    for (std::uint32_t i = whole * 4 + place_in_row(); i < width; i += threads_per_row()) {
        const std::int32_t page = pages[i];
        k[i] = scaling.k(page);
        v[i] = scaling.v(page);
    }
}

__device__ void copy_row(std::int32_t* to, const std::int32_t* from, std::uint32_t width) {
    const std::uint32_t whole = aligned(to) && aligned(from) ? width / 4 : 0;
    for (std::uint32_t i = place_in_row(); i < whole; i += threads_per_row()) {
        pieces(to)[i] = pieces(from)[i];
    }
    for (std::uint32_t i = whole * 4 + place_in_row(); i < width; i += threads_per_row()) {
        to[i] = from[i];
    }
}

__device__ std::int32_t* k_plane(const OffsetDestination& dst, std::uint32_t pool, std::uint32_t row) {
    return dst.data + pool * dst.pool_stride + std::uint64_t{row} * 2 * dst.blocks;
}

// Calls body(pool, row) for the rows of this block. blockIdx.x walks over the rows of all pools.
template <typename Call, typename Body>
__device__ void for_each_row(const Call& call, const Body& body) {
    for (std::uint32_t i = blockIdx.x; i < call.pools * call.rows; i += gridDim.x) {
        body(i / call.rows, i % call.rows);
    }
}

// The same for kernels whose work has one dimension.
__device__ std::uint64_t place_in_grid() { return std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ std::uint64_t threads_in_grid() { return std::uint64_t{gridDim.x} * blockDim.x; }

// Each warp takes one stretch of a block at a time.
__device__ void copy_with_threads(const kvfix::CopyBlocks& call) {
    constexpr std::uint32_t kStretch = kWarp * kLoadsInFlight;
    const std::uint32_t lane = threadIdx.x % kWarp;
    const std::uint64_t block_pieces = call.bytes / sizeof(int4);
    const std::uint64_t block_stretches = (block_pieces + kStretch - 1) / kStretch;
    for (std::uint64_t i = place_in_grid() / kWarp; i < block_stretches * call.count; i += threads_in_grid() / kWarp) {
        const BlockPair pair = call.pairs[i / block_stretches];
        const auto* src = reinterpret_cast<const int4*>(pair.src);
        auto* dst = reinterpret_cast<int4*>(pair.dst);
        const std::uint64_t begin = i % block_stretches * kStretch + lane;
        int4 held[kLoadsInFlight];
#pragma unroll
        for (std::uint32_t load = 0; load < kLoadsInFlight; ++load) {
            const std::uint64_t piece = begin + load * kWarp;
            if (piece < block_pieces) {
                held[load] = __ldcs(src + piece);
            }
        }
#pragma unroll
        for (std::uint32_t load = 0; load < kLoadsInFlight; ++load) {
            const std::uint64_t piece = begin + load * kWarp;
            if (piece < block_pieces) {
                __stcs(dst + piece, held[load]);
            }
        }
    }
}

// The sum of all threads' values, in thread 0. A thread block is at most 32 whole warps, with a shared word for each.
// The kernel has these: nvcc would name a variable in here by the folder of this file, and two builds would differ.
__device__ std::uint64_t sum_of_block(std::uint64_t value, std::uint64_t* of_warps) {
    const auto sum_of_warp = [](std::uint64_t each) {
        for (std::uint32_t distance = kWarp / 2; distance > 0; distance /= 2) {
            each += __shfl_down_sync(0xffff'ffff, each, distance);
        }
        return each;
    };
    value = sum_of_warp(value);
    if (threadIdx.x % kWarp == 0) {
        of_warps[threadIdx.x / kWarp] = value;
    }
    __syncthreads();
    if (threadIdx.x < kWarp) {
        value = sum_of_warp(threadIdx.x < blockDim.x / kWarp ? of_warps[threadIdx.x] : 0);
    }
    __syncthreads();  // before the next sum
    return value;
}

// This thread's share of the pieces from `begin` to `end` of one stretch.
__device__ std::uint64_t sum_of_pieces(const int4* stretch, std::uint32_t begin, std::uint32_t end, std::uint64_t key) {
    const auto summand = [key](const int4& piece, std::uint32_t place) {
        const auto word = [](int low, int high) {
            return static_cast<std::uint32_t>(low) | std::uint64_t{static_cast<std::uint32_t>(high)} << 32;
        };
        return kvfix::digest_summand(key, place, {word(piece.x, piece.y), word(piece.z, piece.w)});
    };
    std::uint64_t sum = 0;
    std::uint32_t i = begin + threadIdx.x;
    for (; i + blockDim.x * (kDigestLoads - 1) < end; i += blockDim.x * kDigestLoads) {
        int4 held[kDigestLoads];
#pragma unroll
        for (std::uint32_t load = 0; load < kDigestLoads; ++load) {
            held[load] = __ldcs(stretch + i + blockDim.x * load);
        }
#pragma unroll
        for (std::uint32_t load = 0; load < kDigestLoads; ++load) {
            sum += summand(held[load], i + blockDim.x * load);
        }
    }
    for (; i < end; i += blockDim.x) {
        sum += summand(__ldcs(stretch + i), i);
    }
    return sum;
}

}  // namespace

extern "C" {

__global__ void ExpandRows(const __grid_constant__ kvfix::ExpandRows call) {
    for_each_row(call, [&](std::uint32_t pool, std::uint32_t row) {
        std::int32_t* k = k_plane(call.dst, pool, row);
        const std::int32_t* pages = call.staged + (std::uint64_t{pool} * call.rows + row) * call.width;
        expand_row(k, k + call.dst.blocks, pages, call.width, Scaling(call.scale, pool));
    });
}

__global__ void GatherHostRows(const __grid_constant__ kvfix::GatherHostRows call) {
    for_each_row(call, [&](std::uint32_t pool, std::uint32_t row) {
        std::int32_t* k = k_plane(call.dst, pool, row);
        const std::int64_t row_stride = std::int64_t{2} * call.table_blocks;
        const std::int32_t* pages = call.table + pool * call.table_pool_stride + call.copy_index[row] * row_stride;
        expand_row(k, k + call.dst.blocks, pages, call.width, Scaling(call.scale, pool));
    });
}

__global__ void GatherDeviceRows(const __grid_constant__ kvfix::GatherDeviceRows call) {
    for_each_row(call, [&](std::uint32_t pool, std::uint32_t row) {
        std::int32_t* k = k_plane(call.dst, pool, row);
        const std::uint64_t table_row = std::uint64_t{call.row_index[row]} * call.table_row_stride;
        const std::int32_t* pages = call.table + pool * call.table_pool_stride + table_row;
        if (call.planes == 2) {
            copy_row(k, pages, call.width);
            copy_row(k + call.dst.blocks, pages + call.table_row_stride / 2, call.width);
        } else {
            expand_row(k, k + call.dst.blocks, pages, call.width, Scaling(call.scale, pool));
        }
    });
}

__global__ void __launch_bounds__(kCopyThreadsMax) CopyBlocks(const __grid_constant__ kvfix::CopyBlocks call) {
#if __CUDA_ARCH__ >= 900
    if (bulk_copy::dynamic_shared_bytes() >= kvfix::kCopySharedBytes) {
        if (threadIdx.x < kWarp) {
            bulk_copy::copy(call);
        }
        return;
    }
#endif
    copy_with_threads(call);
}

// A thread block makes sums that are neighbours: it asks the host's memory for the address of a block once.
__global__ void __launch_bounds__(kDigestThreadsMax, kvfix::kDigestBlocksPerMultiprocessor)
    DigestBlocks(const __grid_constant__ kvfix::DigestBlocks call) {
    __shared__ std::uint64_t of_warps[kWarp];
    const auto pieces_per_layer = static_cast<std::uint32_t>(call.layer_bytes / sizeof(int4));
    const std::uint32_t pieces_per_part = (pieces_per_layer + call.parts - 1) / call.parts;
    const std::uint32_t sums_per_block = call.layers * call.parts;
    const std::uint32_t sums = call.count * sums_per_block;
    const std::uint32_t share = (sums + gridDim.x - 1) / gridDim.x;
    std::uint32_t i = min(blockIdx.x * share, sums);
    const std::uint32_t past = min(i + share, sums);
    while (i < past) {
        const std::uint32_t block = i / sums_per_block;
        const std::uint64_t address = call.blocks[block];
        for (const std::uint32_t last = min((block + 1) * sums_per_block, past); i < last; ++i) {
            const std::uint32_t layer = i / call.parts % call.layers;
            const std::uint32_t begin = i % call.parts * pieces_per_part;
            const auto* stretch = reinterpret_cast<const int4*>(address + layer * call.layer_bytes);
            const std::uint32_t end = min(begin + pieces_per_part, pieces_per_layer);
            const std::uint64_t sum = sum_of_block(sum_of_pieces(stretch, begin, end, call.key), of_warps);
            if (threadIdx.x == 0) {
                call.sums[i] = sum;
            }
        }
    }
}

__global__ void FillWords(const __grid_constant__ kvfix::FillWords call) {
    const std::uint64_t past = reinterpret_cast<std::uintptr_t>(call.words) % sizeof(int4) / sizeof(std::uint32_t);
    const std::uint64_t to_alignment = past == 0 ? 0 : 4 - past;
    const std::uint64_t head = to_alignment < call.count ? to_alignment : call.count;
    const std::uint64_t whole = (call.count - head) / 4;
    const int value = static_cast<int>(call.value);
    for (std::uint64_t i = place_in_grid(); i < head; i += threads_in_grid()) {
        call.words[i] = call.value;
    }
    for (std::uint64_t i = place_in_grid(); i < whole; i += threads_in_grid()) {
        pieces(call.words + head)[i] = {value, value, value, value};
    }
    for (std::uint64_t i = head + whole * 4 + place_in_grid(); i < call.count; i += threads_in_grid()) {
        call.words[i] = call.value;
    }
}

}  // extern "C"
