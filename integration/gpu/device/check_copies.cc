// Copies in every direction, rows with pitches, and batches by every form of the driver's call.
#include <dlfcn.h>

#include <algorithm>

#include "checks.h"
#include "device/cuda_copies.h"

namespace kvfix {
namespace {

constexpr std::size_t kBytes = 1'000'003;

// Host to device, across the device, and back to the host.
struct RoundTrip {
    explicit RoundTrip(const std::shared_ptr<Device>& device)
        : source(device, kBytes), there(device, kBytes), across(device, kBytes), back(device, kBytes) {
        auto* bytes = static_cast<std::uint8_t*>(source.data());
        for (std::size_t i = 0; i < kBytes; ++i) {
            bytes[i] = static_cast<std::uint8_t>(i * 31 + i / 251);
        }
    }
    bool arrived() const { return std::memcmp(source.data(), back.data(), kBytes) == 0; }
    void forget() const { std::memset(back.data(), 0, kBytes); }

    PinnedMemory source;
    DeviceMemory there, across;
    PinnedMemory back;
};

void check_single(Checks& checks, StreamHandle stream) {
    const RoundTrip trip(checks.device);
    Device& device = *checks.device;
    device.copy({trip.there.address(), trip.source.address(), kBytes}, stream);
    device.copy({trip.across.address(), trip.there.address(), kBytes}, stream);
    device.copy({trip.back.address(), trip.across.address(), kBytes}, stream);
    device.copy({trip.back.address(), trip.across.address(), 0}, stream);
    device.synchronize(stream);
    checks.expect(trip.arrived(), "a copy to the device, across it and back");
}

void check_rows(Checks& checks, StreamHandle stream) {
    constexpr std::size_t kRows = 37;
    constexpr std::size_t kRowBytes = 101;
    constexpr std::size_t kPitch[] = {103, 128, 101, 257};  // source, there, across, back
    const RoundTrip trip(checks.device);
    Device& device = *checks.device;
    trip.forget();
    device.copy_rows({trip.there.address(), kPitch[1], trip.source.address(), kPitch[0], kRowBytes, kRows}, stream);
    device.copy_rows({trip.across.address(), kPitch[2], trip.there.address(), kPitch[1], kRowBytes, kRows}, stream);
    device.copy_rows({trip.back.address(), kPitch[3], trip.across.address(), kPitch[2], kRowBytes, kRows}, stream);
    device.synchronize(stream);
    std::vector<std::uint8_t> expected(kBytes);
    for (std::size_t row = 0; row < kRows; ++row) {
        std::memcpy(&expected[row * kPitch[3]], static_cast<std::uint8_t*>(trip.source.data()) + row * kPitch[0],
                    kRowBytes);
    }
    checks.expect(std::memcmp(expected.data(), trip.back.data(), kBytes) == 0,
                  "rows with pitches, both ways and across");
}

// Spans of many sizes, empty ones among them, that cover everything.
std::vector<CopySpan> spans(std::uintptr_t dst, std::uintptr_t src) {
    std::vector<CopySpan> all;
    for (std::size_t at = 0, step = 0; at < kBytes; at += step) {
        step = std::min(kBytes - at, step * 3 / 2 + 1);
        all.push_back({dst + at, src + at, step});
        all.push_back({dst + at, src + at, 0});
    }
    return all;
}

using Batch = std::function<void(const std::vector<CopySpan>&, SourceOrder)>;

void check_batch(Checks& checks, const std::string& how, StreamHandle stream, const Batch& batch) {
    const RoundTrip trip(checks.device);
    for (const SourceOrder order : {SourceOrder::stream, SourceOrder::any}) {
        trip.forget();
        batch(spans(trip.there.address(), trip.source.address()), order);
        checks.device->synchronize(stream);  // a batch with order `any` may read before the one ahead has written
        batch(spans(trip.back.address(), trip.there.address()), order);
        checks.device->synchronize(stream);
        checks.expect(trip.arrived(),
                      "a batch by " + how + ", order " + (order == SourceOrder::any ? "any" : "stream"));
    }
}

void check_device_batch(Checks& checks, const std::string& how, StreamHandle stream) {
    check_batch(checks, how, stream,
                [&](const auto& all, SourceOrder order) { checks.device->copy_batch(all, order, stream); });
}

// The form of CUDA 12.8, which newer drivers still have.
void check_older_batch(Checks& checks, StreamHandle stream) {
    cuda::Driver driver("libcuda.so.1");
    if (!driver.copy_batch.present()) {
        return;  // check_device_batch() has already used this form
    }
    void* older = nullptr;
    const auto find = reinterpret_cast<int (*)(const char*, void**, int, std::uint64_t, int*)>(
        dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2"));
    find("cuMemcpyBatchAsync", &older, cuda::kVersion12_8, cuda::kProcAddressLegacyStream, nullptr);
    checks.expect(older != nullptr, "this driver has the batch call of CUDA 12.8");
    driver.copy_batch.set(nullptr);
    driver.copy_batch_12.set(older);
    const cuda::PrimaryContext context(driver, 0);
    check_batch(checks, "the call of CUDA 12.8", stream, [&](const auto& all, SourceOrder order) {
        cuda::Copies(context).batch(all, order, reinterpret_cast<cuda::Stream>(stream.value));
    });
}

}  // namespace

void check_copies(Checks& checks) {
    const OwnStream stream(checks.device);
    for (const StreamHandle each : {stream.handle, StreamHandle{0}}) {
        check_single(checks, each);
        check_rows(checks, each);
    }
    check_device_batch(checks, "a stream of ours", stream.handle);
    check_device_batch(checks, "the default stream", {0});
    check_device_batch(checks, "the default stream by its other name", {cuda::kLegacyStream});
    check_device_batch(checks, "the default stream of this thread", {2});
    check_older_batch(checks, stream.handle);
}

}  // namespace kvfix
