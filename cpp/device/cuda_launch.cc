#include "device/cuda_launch.h"

#include <algorithm>

namespace kvfix::cuda {
namespace {

constexpr std::uint32_t kWarp = 32;
constexpr std::uint32_t kThreadsMax = 256;
constexpr std::uint32_t kWordsPerThread = 4;  // one 16-byte piece
// Enough to fill any GPU; the kernels loop over the rest.
constexpr std::uint64_t kRowBlocksMax = 1 << 16;
constexpr std::uint64_t kBlocksAlongRowMax = 64;
constexpr std::uint64_t kBlocksPerMultiprocessor = 8;
constexpr std::uint64_t kStretchBytes = 4096;  // what a warp of CopyBlocks copies at a time
constexpr std::uint64_t kCopyThreadsMax = 1024;

std::uint64_t divide_up(std::uint64_t value, std::uint64_t by) { return (value + by - 1) / by; }

// One thread block for each stretch of a row. Small rows get small blocks.
LaunchShape for_rows(std::uint64_t rows, std::uint32_t width) {
    if (rows == 0 || width == 0) {
        return {};
    }
    const std::uint64_t pieces = divide_up(width, kWordsPerThread);
    const std::uint64_t threads = std::min<std::uint64_t>(kThreadsMax, divide_up(pieces, kWarp) * kWarp);
    return {.blocks_x = static_cast<std::uint32_t>(std::min(rows, kRowBlocksMax)),
            .blocks_y = static_cast<std::uint32_t>(std::min(divide_up(pieces, threads), kBlocksAlongRowMax)),
            .threads = static_cast<std::uint32_t>(threads)};
}

LaunchShape for_threads(std::uint64_t threads, std::uint64_t blocks_max) {
    return {.blocks_x = static_cast<std::uint32_t>(std::min(divide_up(threads, kThreadsMax), blocks_max)),
            .threads = kThreadsMax};
}

// CopyBlocks shares the GPU with compute, so it gets one thread block for each multiprocessor that it may take.
LaunchShape for_copies(const CopyBlocks& call, bool in_bulk) {
    const std::uint64_t piece_bytes = in_bulk ? kCopyPieceBytes : kStretchBytes;
    const std::uint64_t pieces = call.count * divide_up(call.bytes, piece_bytes);
    if (pieces == 0) {
        return {};
    }
    if (in_bulk) {
        return {.blocks_x = static_cast<std::uint32_t>(std::min<std::uint64_t>(call.sms, pieces)),
                .threads = kWarp,
                .shared_bytes = kCopySharedBytes};
    }
    const std::uint64_t threads = pieces * kWarp;
    return {
        .blocks_x = static_cast<std::uint32_t>(std::min<std::uint64_t>(call.sms, divide_up(threads, kCopyThreadsMax))),
        .threads = static_cast<std::uint32_t>(std::min(threads, kCopyThreadsMax))};
}

struct ShapeOf {
    const Gpu& gpu;

    template <typename RowCall>
    LaunchShape operator()(const RowCall& call) const {
        return for_rows(std::uint64_t{call.pools} * call.rows, call.width);
    }
    LaunchShape operator()(const FillWords& call) const {
        return for_threads(divide_up(call.count, kWordsPerThread), kBlocksPerMultiprocessor * gpu.multiprocessors);
    }
    // A thread block for each sum, which its threads make together.
    LaunchShape operator()(const DigestBlocks& call) const {
        const std::uint64_t sums = std::uint64_t{call.count} * call.layers * call.parts;
        const std::uint64_t most = std::uint64_t{kDigestBlocksPerMultiprocessor} * gpu.multiprocessors;
        return {.blocks_x = static_cast<std::uint32_t>(std::min(sums, most)), .threads = kThreadsMax};
    }
    LaunchShape operator()(const CopyBlocks& call) const { return for_copies(call, gpu.copies_in_bulk); }
};

}  // namespace

LaunchShape launch_shape(const KernelCall& call, const Gpu& gpu) { return std::visit(ShapeOf{gpu}, call); }

}  // namespace kvfix::cuda
