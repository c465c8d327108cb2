// Index arrays are read once, when the kernel runs, and the reference gets that copy. The CPU may be rewriting the
// original (that is the hazard), and an index must not change between its check and its use.
#include "device/sim_kernels.h"

#include <vector>

#include "kernels/reference.h"
#include "kernels/relaxed.h"

namespace kvfix {
namespace {

std::uintptr_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

template <typename T>
std::vector<T> read_indices(const T* from, std::size_t count, const char* what, const SimMemory::Access& access) {
    access.require(address_of(from), checked_bytes({count, sizeof(T)}), what);
    std::vector<T> read(count);
    copy_relaxed(address_of(read.data()), address_of(from), count * sizeof(T));
    return read;
}

void require_destination(const OffsetDestination& dst, std::uint32_t pools, std::uint32_t rows,
                         const SimMemory::Access& access) {
    for (std::uint32_t pool = 0; pool < pools; ++pool) {
        access.require(address_of(dst.data) + pool * dst.pool_stride * sizeof(std::int32_t),
                       checked_bytes({rows, 2, dst.blocks, sizeof(std::int32_t)}), "destination rows");
    }
}

void run_one(const ExpandRows& call, const SimMemory::Access& access) {
    access.require(address_of(call.staged), checked_bytes({call.pools, call.rows, call.width, sizeof(std::int32_t)}),
                   "staged pages");
    require_destination(call.dst, call.pools, call.rows, access);
    run_reference(call);
}

// Checks that `elements` of row `row` of a table may be read, in every pool. A wild row gives a wild address, which is
// refused.
void require_table_row(const std::int32_t* table, std::uint32_t pools, std::uint64_t pool_stride, std::uint64_t row,
                       std::uint64_t row_stride, std::uint64_t elements, const SimMemory::Access& access) {
    for (std::uint32_t pool = 0; pool < pools; ++pool) {
        access.require(address_of(table) + (pool * pool_stride + row * row_stride) * sizeof(std::int32_t),
                       elements * sizeof(std::int32_t), "table row");
    }
}

void run_one(GatherHostRows call, const SimMemory::Access& access) {
    const auto copy_index = read_indices(call.copy_index, call.rows, "copy index", access);
    call.copy_index = copy_index.data();
    for (const std::int32_t row : copy_index) {
        require_table_row(call.table, call.pools, call.table_pool_stride, static_cast<std::uint64_t>(row),
                          std::uint64_t{2} * call.table_blocks, call.width, access);
    }
    require_destination(call.dst, call.pools, call.rows, access);
    run_reference(call);
}

void run_one(GatherDeviceRows call, const SimMemory::Access& access) {
    const auto row_index = read_indices(call.row_index, call.rows, "row index", access);
    call.row_index = row_index.data();
    const std::uint64_t elements = std::uint64_t{call.planes - 1} * (call.table_row_stride / call.planes) + call.width;
    for (const std::uint32_t row : row_index) {
        require_table_row(call.table, call.pools, call.table_pool_stride, row, call.table_row_stride, elements, access);
    }
    require_destination(call.dst, call.pools, call.rows, access);
    run_reference(call);
}

void require_block(std::uint64_t address, std::uint64_t bytes, const char* what, const SimMemory::Access& access) {
    access.require(address, bytes, what);
    if (address % 16 != 0) {
        throw DeviceError(std::string(what) + " at " + hex(address) + " is not 16-byte aligned");
    }
}

void run_one(CopyBlocks call, const SimMemory::Access& access) {
    const auto pairs = read_indices(call.pairs, call.count, "block pairs", access);
    call.pairs = pairs.data();
    for (const BlockPair& pair : pairs) {
        require_block(pair.src, call.bytes, "source block", access);
        require_block(pair.dst, call.bytes, "destination block", access);
    }
    run_reference(call);
}

void run_one(DigestBlocks call, const SimMemory::Access& access) {
    const auto blocks = read_indices(call.blocks, call.count, "addresses of blocks", access);
    call.blocks = blocks.data();
    for (const std::uint64_t block : blocks) {
        require_block(block, checked_bytes({call.layers, call.layer_bytes}), "digested block", access);
    }
    access.require(address_of(call.sums), checked_bytes({call.count, call.layers, call.parts, sizeof(std::uint64_t)}),
                   "sums");
    run_reference(call);
}

void run_one(const FillWords& call, const SimMemory::Access& access) {
    access.require(address_of(call.words), checked_bytes({call.count, sizeof(std::uint32_t)}), "filled words");
    run_reference(call);
}

}  // namespace

void run_kernel(const KernelCall& call, const SimMemory::Access& access) {
    std::visit([&](const auto& one) { run_one(one, access); }, call);
}

}  // namespace kvfix
