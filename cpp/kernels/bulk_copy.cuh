// Copies blocks with the bulk copy engine of a multiprocessor (Hopper and newer). A piece comes into shared memory and
// leaves it again while others are on their way, so one warp moves as much as hundreds of threads with their own loads
// and stores.
//
// A stage of shared memory goes round: loaded (its barrier counts the bytes), stored (a bulk group), and free once that
// group has been read. The first lane does everything; the others fetch which blocks come next, 32 pieces ahead.
#pragma once

#include "kernels/calls.h"

namespace bulk_copy {

constexpr std::uint32_t kWarp = 32;
// The number of stores that may still read their stages while the next load begins. More would leave fewer stages for
// loads.
constexpr std::uint32_t kStoresPending = 2;
static_assert(kStoresPending < kvfix::kCopyStages && kvfix::kCopyStages <= kWarp);

__device__ inline std::uint32_t shared_address(const void* at) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

__device__ inline std::uint32_t dynamic_shared_bytes() {
    std::uint32_t bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

__device__ inline void init_barrier(std::uint64_t* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}
// Makes barriers that were initialized with ordinary writes visible to the copy engine.
__device__ inline void show_barriers() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void begin_load(void* stage, std::uint64_t src, std::uint32_t bytes, std::uint64_t* barrier) {
    const std::uint32_t counts = shared_address(barrier);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(counts), "r"(bytes) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(stage)),
        "l"(src), "r"(bytes), "r"(counts)
        : "memory");
}

__device__ inline void wait_loaded(std::uint64_t* barrier, std::uint32_t parity) {
    std::uint32_t done;
    do {
        asm volatile(
            "{\n"
            ".reg .pred done;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
            "selp.u32 %0, 1, 0, done;\n"
            "}"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    } while (done == 0);
}

__device__ inline void begin_store(std::uint64_t dst, const void* stage, std::uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(shared_address(stage)),
                 "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until all stores but the latest few have read their stages.
__device__ inline void wait_stages_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kStoresPending) : "memory");
}
__device__ inline void wait_stored() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// The pieces of this thread block: every gridDim.x-th piece of all blocks. All lanes walk together.
class Pieces {
  public:
    __device__ explicit Pieces(const kvfix::CopyBlocks& call)
        : call_(call),
          per_block_(static_cast<std::uint32_t>((call.bytes + kvfix::kCopyPieceBytes - 1) / kvfix::kCopyPieceBytes)),
          all_(per_block_ * call.count),
          next_(blockIdx.x),
          in_block_(blockIdx.x % per_block_),
          held_(fetch(next_)),
          ahead_(fetch(next_ + kWarp * gridDim.x)) {}

    __device__ bool any() const { return next_ < all_; }

    // Returns the size of the next piece, and sets where it comes from and goes to.
    __device__ std::uint32_t take(std::uint64_t& src, std::uint64_t& dst) {
        if (fetched_ == kWarp) {
            fetched_ = 0;
            held_ = ahead_;
            ahead_ = fetch(next_ + kWarp * gridDim.x);
        }
        const std::uint64_t offset = std::uint64_t{in_block_} * kvfix::kCopyPieceBytes;
        src = __shfl_sync(~0U, held_.src, fetched_) + offset;
        dst = __shfl_sync(~0U, held_.dst, fetched_) + offset;
        ++fetched_;
        next_ += gridDim.x;
        in_block_ += gridDim.x % per_block_;
        in_block_ -= in_block_ >= per_block_ ? per_block_ : 0;
        const std::uint64_t left = call_.bytes - offset;
        return static_cast<std::uint32_t>(left < kvfix::kCopyPieceBytes ? left : kvfix::kCopyPieceBytes);
    }

  private:
    // Each lane fetches the block of another piece, from `first` on.
    __device__ kvfix::BlockPair fetch(std::uint32_t first) const {
        const std::uint32_t piece = first + threadIdx.x * gridDim.x;
        return piece < all_ ? call_.pairs[piece / per_block_] : kvfix::BlockPair{0, 0};
    }

    const kvfix::CopyBlocks& call_;
    const std::uint32_t per_block_;
    const std::uint32_t all_;
    std::uint32_t next_;
    std::uint32_t in_block_;
    std::uint32_t fetched_ = 0;
    kvfix::BlockPair held_;
    kvfix::BlockPair ahead_;
};

// The first warp of each thread block calls it, with kCopySharedBytes of dynamic shared memory.
__device__ inline void copy(const kvfix::CopyBlocks& call) {
    extern __shared__ __align__(128) unsigned char stages[];
    __shared__ std::uint64_t loaded[kvfix::kCopyStages];
    __shared__ std::uint64_t to[kvfix::kCopyStages];
    __shared__ std::uint32_t sizes[kvfix::kCopyStages];
    const bool leads = threadIdx.x == 0;
    if (leads) {
        for (std::uint64_t& barrier : loaded) {
            init_barrier(&barrier);
        }
        show_barriers();
    }
    __syncwarp();
    Pieces pieces(call);
    std::uint32_t fill = 0;
    std::uint32_t pending = 0;
    const auto load_next = [&] {
        std::uint64_t src;
        std::uint64_t dst;
        const std::uint32_t bytes = pieces.take(src, dst);
        if (leads) {
            to[fill] = dst;
            sizes[fill] = bytes;
            begin_load(stages + fill * kvfix::kCopyPieceBytes, src, bytes, &loaded[fill]);
        }
        fill = fill + 1 == kvfix::kCopyStages ? 0 : fill + 1;
        ++pending;
    };
    while (pieces.any() && pending < kvfix::kCopyStages) {
        load_next();
    }
    std::uint32_t drain = 0;
    std::uint32_t parity = 0;
    for (std::uint32_t stored = 0; pending != 0; ++stored, --pending) {
        if (leads) {
            wait_loaded(&loaded[drain], parity);
            begin_store(to[drain], stages + drain * kvfix::kCopyPieceBytes, sizes[drain]);
        }
        drain = drain + 1 == kvfix::kCopyStages ? 0 : drain + 1;
        parity ^= drain == 0 ? 1 : 0;
        if (stored >= kStoresPending && pieces.any()) {
            if (leads) {
                wait_stages_read();
            }
            load_next();
        }
    }
    if (leads) {
        wait_stored();
    }
}

}  // namespace bulk_copy
