#include "device/cuda_copies.h"

#include <vector>

namespace kvfix::cuda {
namespace {

bool is_legacy(Stream stream) {
    const auto handle = reinterpret_cast<std::uintptr_t>(stream);
    return handle == 0 || handle == kLegacyStream;
}

}  // namespace

void Copies::one(const CopySpan& span, Stream stream) const {
    const CurrentContext current = context_.use();
    context_.driver.copy(span.dst, span.src, span.bytes, stream);
}

void Copies::rows(const RowCopy& rows, Stream stream) const {
    if (rows.row_bytes > rows.src_pitch || rows.row_bytes > rows.dst_pitch) {
        throw DeviceError("copy_rows: row_bytes is " + std::to_string(rows.row_bytes) + ", more than a pitch (src " +
                          std::to_string(rows.src_pitch) + ", dst " + std::to_string(rows.dst_pitch) +
                          "); usual cause: elements counted instead of bytes");
    }
    if (rows.rows == 0 || rows.row_bytes == 0) {
        return;
    }
    if (rows.row_bytes == rows.src_pitch && rows.row_bytes == rows.dst_pitch) {  // the driver is slower line by line
        one({.dst = rows.dst, .src = rows.src, .bytes = rows.rows * rows.row_bytes}, stream);
        return;
    }
    Copy2d copy{};
    copy.src_memory = kMemoryUnified;
    copy.src = rows.src;
    copy.src_pitch = rows.src_pitch;
    copy.dst_memory = kMemoryUnified;
    copy.dst = rows.dst;
    copy.dst_pitch = rows.dst_pitch;
    copy.width_bytes = rows.row_bytes;
    copy.height = rows.rows;
    const CurrentContext current = context_.use();
    context_.driver.copy_2d(&copy, stream);
}

bool Copies::has_batch() const {
    return context_.driver.copy_batch.present() || context_.driver.copy_batch_12.present();
}

void Copies::batch(std::span<const CopySpan> spans, SourceOrder order, Stream stream) const {
    const CurrentContext current = context_.use();
    if (has_batch() && !is_legacy(stream)) {
        batch_in_one_call(spans, order, stream);
        return;
    }
    for (const CopySpan& span : spans) {
        context_.driver.copy(span.dst, span.src, span.bytes, stream);
    }
}

void Copies::batch_in_one_call(std::span<const CopySpan> spans, SourceOrder order, Stream stream) const {
    std::vector<Address> dst;
    std::vector<Address> src;
    std::vector<std::size_t> bytes;
    dst.reserve(spans.size());
    src.reserve(spans.size());
    bytes.reserve(spans.size());
    for (const CopySpan& span : spans) {
        if (span.bytes != 0) {  // the driver refuses a batch with an empty copy in it
            dst.push_back(span.dst);
            src.push_back(span.src);
            bytes.push_back(span.bytes);
        }
    }
    if (dst.empty()) {
        return;
    }
    // One set of attributes serves all copies, from index 0 on. The driver reads the arrays only during the call.
    CopyAttributes attributes{};
    attributes.access_order = order == SourceOrder::stream ? kAccessOrderStream : kAccessOrderAny;
    std::size_t first_copy = 0;
    const Driver& driver = context_.driver;
    if (driver.copy_batch.present()) {
        driver.copy_batch(dst.data(), src.data(), bytes.data(), dst.size(), &attributes, &first_copy, 1, stream);
    } else {
        std::size_t failed_copy = 0;
        driver.copy_batch_12(dst.data(), src.data(), bytes.data(), dst.size(), &attributes, &first_copy, 1,
                             &failed_copy, stream);
    }
}

}  // namespace kvfix::cuda
