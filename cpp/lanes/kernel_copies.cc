#include "lanes/kernel_copies.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvfix {
namespace {

constexpr std::size_t kAlignment = 16;

std::uint32_t checked_sms(const Device& device, std::uint32_t sms) {
    if (!device.has_kernels()) {
        throw std::invalid_argument("copies by kernel: " + device.name() +
                                    " has no kernels; they are built where nvcc is found");
    }
    if (sms == 0 || sms > device.multiprocessors()) {
        throw std::invalid_argument("copies by kernel: " + std::to_string(sms) + " multiprocessors were asked for; " +
                                    device.name() + " has 1 to " + std::to_string(device.multiprocessors()));
    }
    return sms;
}

}  // namespace

KernelCopies::KernelCopies(std::shared_ptr<Device> device, std::uint32_t sms, std::size_t launches_max)
    : device_(std::move(device)),
      sms_(checked_sms(*device_, sms)),
      ring_(device_, launches_max, kPairsPerLaunch * sizeof(BlockPair)) {}

bool KernelCopies::takes(std::span<const CopySpan> spans) {
    return std::ranges::all_of(
        spans, [](const CopySpan& span) { return (span.dst | span.src | span.bytes) % kAlignment == 0; });
}

void KernelCopies::enqueue(std::span<const CopySpan> spans, StreamHandle stream) {
    while (!spans.empty()) {
        const auto other = std::ranges::find_if(
            spans, [bytes = spans.front().bytes](const CopySpan& span) { return span.bytes != bytes; });
        const auto equal = static_cast<std::size_t>(other - spans.begin());
        const std::size_t run = std::min(equal, kPairsPerLaunch);
        launch(spans.first(run), stream);
        spans = spans.subspan(run);
    }
}

void KernelCopies::launch(std::span<const CopySpan> run, StreamHandle stream) {
    StagingSlot slot = ring_.take();
    auto* pairs = static_cast<BlockPair*>(slot.data());
    std::ranges::transform(run, pairs, [](const CopySpan& span) { return BlockPair{span.dst, span.src}; });
    const CopyBlocks call{.pairs = reinterpret_cast<const BlockPair*>(slot.lend_to_kernels(stream)),
                          .count = static_cast<std::uint32_t>(run.size()),
                          .bytes = run.front().bytes,
                          .sms = sms_};
    device_->launch(call, stream);
    std::move(slot).submit();
}

}  // namespace kvfix
