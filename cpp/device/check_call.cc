#include "device/check_call.h"

#include <array>
#include <limits>

namespace kvfix {
namespace {

[[noreturn]] void refuse(const char* kernel, const std::string& why) {
    throw DeviceError(std::string(kernel) + ": " + why);
}

// The checks that all kernels that write an offset table share.
template <typename Call>
void check_rows(const char* kernel, const Call& call) {
    const OffsetDestination& dst = call.dst;
    if (call.pools > kPoolsMax) {
        refuse(kernel, "pools is " + std::to_string(call.pools) + ", at most " + std::to_string(kPoolsMax) +
                           " scales travel with a launch");
    }
    if (call.width > dst.blocks) {
        refuse(kernel, "width is " + std::to_string(call.width) + ", a plane of the destination has " +
                           std::to_string(dst.blocks) + " blocks");
    }
    const std::uint64_t row_elements = std::uint64_t{call.rows} * 2 * dst.blocks;
    if (call.pools > 1 && row_elements > dst.pool_stride) {
        refuse(kernel, "rows is " + std::to_string(call.rows) + ", which takes " + std::to_string(row_elements) +
                           " elements of a pool; the destination's pool_stride is " + std::to_string(dst.pool_stride));
    }
}

void check_table_width(const char* kernel, std::uint32_t width, std::uint32_t table_blocks) {
    if (width > table_blocks) {
        refuse(kernel, "width is " + std::to_string(width) + ", a plane of the table has " +
                           std::to_string(table_blocks) + " blocks");
    }
}

void check_one(const char* kernel, const ExpandRows& call) { check_rows(kernel, call); }
void check_one(const char* kernel, const GatherHostRows& call) {
    check_rows(kernel, call);
    check_table_width(kernel, call.width, call.table_blocks);
}
void check_one(const char* kernel, const GatherDeviceRows& call) {
    check_rows(kernel, call);
    if (call.planes != 1 && call.planes != 2) {
        refuse(kernel, "planes is " + std::to_string(call.planes) + ": 1 (K plane, to be scaled) or 2 (K and V)");
    }
    if (call.table_row_stride % call.planes != 0) {
        refuse(kernel, "table_row_stride is " + std::to_string(call.table_row_stride) + ", not two planes of one size");
    }
    check_table_width(kernel, call.width, call.table_row_stride / call.planes);
}
void check_one(const char* kernel, const CopyBlocks& call) {
    if (call.bytes % 16 != 0) {
        refuse(kernel,
               "bytes is " + std::to_string(call.bytes) + ", not a multiple of 16: blocks are copied 16 at a time");
    }
    if (call.sms == 0) {
        refuse(kernel, "sms is 0: it needs a multiprocessor to run on");
    }
    const std::uint64_t pieces = call.bytes / kCopyPieceBytes + 1;
    if (call.count != 0 && pieces > std::numeric_limits<std::int32_t>::max() / call.count) {
        refuse(kernel, "count is " + std::to_string(call.count) + " and bytes is " + std::to_string(call.bytes) +
                           ": pieces of " + std::to_string(kCopyPieceBytes) + " bytes are counted in 31 bits");
    }
}
void check_one(const char* kernel, const DigestBlocks& call) {
    if (call.layer_bytes % 16 != 0) {
        refuse(kernel, "layer_bytes is " + std::to_string(call.layer_bytes) +
                           ", not a multiple of 16: layers are read 16 bytes at a time");
    }
    if (call.parts == 0) {
        refuse(kernel, "parts is 0: a layer has at least one");
    }
    constexpr std::uint64_t kMost = std::numeric_limits<std::int32_t>::max();
    const std::uint64_t pieces = call.layer_bytes / 16;
    const std::uint64_t sums_per_layer = std::uint64_t{call.count} * call.parts;
    if (pieces > kMost || sums_per_layer > kMost || (call.layers != 0 && sums_per_layer > kMost / call.layers)) {
        refuse(kernel, "count is " + std::to_string(call.count) + ", layers is " + std::to_string(call.layers) +
                           ", parts is " + std::to_string(call.parts) + " and layer_bytes is " +
                           std::to_string(call.layer_bytes) + ": sums and pieces are counted in 31 bits");
    }
}
void check_one(const char*, const FillWords&) {}

}  // namespace

const char* kernel_name(const KernelCall& call) {
    static constexpr std::array names{"ExpandRows", "GatherHostRows", "GatherDeviceRows",
                                      "CopyBlocks", "DigestBlocks",   "FillWords"};
    static_assert(names.size() == std::variant_size_v<KernelCall>);
    return names[call.index()];
}

void check_call(const KernelCall& call) {
    std::visit([&](const auto& one) { check_one(kernel_name(call), one); }, call);
}

}  // namespace kvfix
