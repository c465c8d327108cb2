// Needs an NVIDIA GPU. Measures what calls cost the host, how many multiprocessors CopyBlocks needs to fill the link,
// and how long the kernels that write offsets take. Times are medians. Nothing is judged.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <vector>

#include "device/cuda_kernels.h"
#include "staging/pinned_memory.h"

namespace kvfix {
namespace {

constexpr int kRounds = 15;
constexpr std::size_t kMegabyte = 1 << 20;

double median_us(const std::function<void()>& call) {
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
        const auto begin = std::chrono::steady_clock::now();
        call();
        times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    }
    std::ranges::nth_element(times, times.begin() + kRounds / 2);
    return times[kRounds / 2];
}

struct Bench {
    std::shared_ptr<Device> device;
    cuda::PrimaryContext context{cuda::driver(), 0};
    cuda::Kernels kernels{context};
    StreamHandle stream = device->create_stream();

    cuda::Stream raw_stream() const { return reinterpret_cast<cuda::Stream>(stream.value); }
};

void measure_calls(const Bench& bench) {
    Device& device = *bench.device;
    constexpr int kCalls = 100;
    const PinnedMemory pinned(bench.device, 4096);
    const DeviceMemory memory(bench.device, 4096);
    const EventHandle event = device.create_event();
    const auto per_call = [&](const char* name, const std::function<void()>& call) {
        const double us = median_us([&] {
            for (int i = 0; i < kCalls; ++i) {
                call();
            }
        });
        device.synchronize(bench.stream);
        std::printf("%-28s %6.2f us of the host\n", name, us / kCalls);
    };
    per_call("copy 4 KiB", [&] { device.copy({memory.address(), pinned.address(), 4096}, bench.stream); });
    per_call("record", [&] { device.record(event, bench.stream); });
    per_call("done", [&] { device.done(event); });
    per_call("make_wait", [&] { device.make_wait(bench.stream, event); });
    per_call("launch", [&] {
        device.launch(FillWords{reinterpret_cast<std::uint32_t*>(memory.address()), 1024, 1}, bench.stream);
    });
    per_call("close and open a gate, wait", [&] {
        device.open_gate(device.close_gate(bench.stream));
        device.synchronize(bench.stream);
    });
    device.destroy_event(event);
}

void measure_links(const Bench& bench) {
    constexpr std::size_t kTotal = 128 * kMegabyte;
    Device& device = *bench.device;
    const PinnedMemory host(bench.device, kTotal);
    const DeviceMemory gpu(bench.device, kTotal);
    for (const std::size_t bytes : {std::size_t{16} << 10, std::size_t{64} << 10, kMegabyte}) {
        const std::size_t blocks = kTotal / bytes;
        for (const bool to_host : {true, false}) {
            const std::uintptr_t to = to_host ? host.device_address() : gpu.address();
            const std::uintptr_t from = to_host ? gpu.address() : host.device_address();
            const PinnedMemory pairs(bench.device, blocks * sizeof(BlockPair));
            std::vector<CopySpan> spans;
            for (std::size_t i = 0; i < blocks; ++i) {
                static_cast<BlockPair*>(pairs.data())[i] = {to + i * bytes, from + i * bytes};
                spans.push_back({to + i * bytes, from + i * bytes, bytes});
            }
            const auto print = [&](const std::string& how, const std::function<void()>& call) {
                const double us = median_us([&] {
                    call();
                    device.synchronize(bench.stream);
                });
                std::printf("%4zu KiB %s %-16s %5.1f GB/s\n", bytes >> 10, to_host ? "to host  " : "to device",
                            how.c_str(), static_cast<double>(kTotal) / us / 1e3);
            };
            print("batch, stream", [&] { device.copy_batch(spans, SourceOrder::stream, bench.stream); });
            print("batch, any", [&] { device.copy_batch(spans, SourceOrder::any, bench.stream); });
            print("one by one", [&] {
                for (const CopySpan& span : spans) {
                    device.copy(span, bench.stream);
                }
            });
            const CopyBlocks call{reinterpret_cast<const BlockPair*>(pairs.device_address()),
                                  static_cast<std::uint32_t>(blocks), bytes};
            for (const std::uint32_t sms : {1U, 2U, 3U, 4U, 8U}) {
                CopyBlocks limited = call;
                limited.sms = sms;
                print("kernel, bulk, " + std::to_string(sms),
                      [&] { bench.kernels.launch(limited, bench.raw_stream()); });
                print("kernel, " + std::to_string(sms),
                      [&] { bench.kernels.launch(limited, {sms, 1, 1024}, bench.raw_stream()); });
            }
        }
    }
}

// Many launches in a row, so that only the GPU's own time remains.
void measure_offsets(const Bench& bench) {
    constexpr int kLaunches = 50;
    constexpr std::uint32_t kShapes[][3] = {
        {1, 64, 256}, {1, 256, 1024}, {1, 256, 1023}, {1, 256, 4096}, {3, 256, 1024}};
    const DeviceMemory to(bench.device, 64 * kMegabyte);
    const DeviceMemory from(bench.device, 64 * kMegabyte);
    const DeviceMemory index(bench.device, 4096);
    const PinnedMemory rows_in_order(bench.device, index.bytes());
    std::iota(static_cast<std::uint32_t*>(rows_in_order.data()),
              static_cast<std::uint32_t*>(rows_in_order.data()) + 1024, 0U);
    bench.device->copy({index.address(), rows_in_order.address(), index.bytes()}, bench.stream);
    for (const auto& [pools, rows, width] : kShapes) {
        const OffsetDestination dst{reinterpret_cast<std::int32_t*>(to.address()), std::uint64_t{rows} * 2 * width,
                                    width};
        const auto* table = reinterpret_cast<const std::int32_t*>(from.address());
        const auto print = [&](const char* name, const KernelCall& call) {
            const double us = median_us([&] {
                for (int i = 0; i < kLaunches; ++i) {
                    bench.device->launch(call, bench.stream);
                }
                bench.device->synchronize(bench.stream);
            });
            std::printf("%u x %3u x %4u  %-24s %6.2f us\n", pools, rows, width, name, us / kLaunches);
        };
        print("ExpandRows", ExpandRows{dst, table, pools, rows, width, {}});
        const auto* rows_at = reinterpret_cast<const std::uint32_t*>(index.address());
        print("GatherDeviceRows, K",
              GatherDeviceRows{dst, table, std::uint64_t{rows} * width, width, rows_at, pools, rows, width, 1, {}});
        print("GatherDeviceRows, K and V",
              GatherDeviceRows{
                  dst, table, std::uint64_t{rows} * 2 * width, 2 * width, rows_at, pools, rows, width, 2, {}});
    }
}

}  // namespace
}  // namespace kvfix

int main() {
    try {
        const kvfix::Bench bench{kvfix::open_cuda_device(0)};
        kvfix::measure_calls(bench);
        kvfix::measure_links(bench);
        kvfix::measure_offsets(bench);
    } catch (const std::exception& error) {
        std::printf("%s\n", error.what());
        return 1;
    }
    return 0;
}
