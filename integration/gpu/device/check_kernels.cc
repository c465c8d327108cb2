// Each kernel against its reference on random work: odd sizes, poor alignment, and tables wider than destinations.
// Whole buffers are compared, so a write past `rows` or `width` shows.
#include <algorithm>
#include <numeric>
#include <random>

#include "checks.h"
#include "kernels/reference.h"

namespace kvfix {
namespace {

using Ints = std::vector<std::int32_t>;
constexpr int kRounds = 60;

class Random {
  public:
    explicit Random(std::uint64_t seed) : engine_(seed) {}

    std::uint32_t below(std::uint32_t end) { return std::uniform_int_distribution<std::uint32_t>(0, end - 1)(engine_); }
    std::uint32_t between(std::uint32_t first, std::uint32_t last) { return first + below(last - first + 1); }
    // Any integers, with bad pages among them.
    Ints pages(std::size_t count) {
        Ints values(count);
        std::ranges::generate(values, [&] { return below(8) == 0 ? kBadPage : static_cast<std::int32_t>(engine_()); });
        return values;
    }
    template <typename T>
    void shuffle(std::vector<T>& values) {
        std::ranges::shuffle(values, engine_);
    }

  private:
    std::mt19937_64 engine_;
};

// A destination each for the kernel and for the reference, and what the three kernels share that write one.
struct Offsets {
    Offsets(const std::shared_ptr<Device>& device, Random& random)
        : pools(random.between(1, 8)),
          rows(random.between(1, 40)),
          blocks(random.below(2) == 0 ? 4 * random.between(1, 80) : random.between(1, 1500)),
          width(random.between(1, blocks)),
          pool_stride(std::uint64_t{rows + random.below(3)} * 2 * blocks + random.below(3)),
          memory(device, random.pages(pools * pool_stride), random.below(3)) {
        for (std::uint32_t pool = 0; pool < kPoolsMax; ++pool) {
            scale.scale[pool] = static_cast<std::int32_t>(random.below(1 << 20));
            scale.v_offset[pool] = static_cast<std::int32_t>(random.below(1 << 20));
        }
    }

    OffsetDestination for_reference() { return {memory.host(), pool_stride, blocks}; }
    OffsetDestination for_kernel() { return {memory.on_device(), pool_stride, blocks}; }

    std::uint32_t pools, rows, blocks, width;
    std::uint64_t pool_stride;
    PageScale scale{};
    Twin<std::int32_t> memory;
};

// Runs both and compares `memory`. `call` is filled in for the reference; `move` turns it into the kernel's.
template <typename Call, typename Memory, typename Move>
bool agrees(Device& device, StreamHandle stream, Call call, Memory& memory, const Move& move) {
    run_reference(call);
    move(call);
    device.launch(call, stream);
    return memory.same(stream);
}

bool expand(const std::shared_ptr<Device>& device, Random& random, StreamHandle stream) {
    Offsets to(device, random);
    Twin<std::int32_t> staged(device, random.pages(std::size_t{to.pools} * to.rows * to.width), random.below(3));
    const ExpandRows call{to.for_reference(), staged.host(), to.pools, to.rows, to.width, to.scale};
    return agrees(*device, stream, call, to.memory, [&](ExpandRows& moved) {
        moved.dst = to.for_kernel();
        moved.staged = staged.on_device();
    });
}

bool gather_host(const std::shared_ptr<Device>& device, Random& random, StreamHandle stream) {
    Offsets to(device, random);
    const std::uint32_t table_rows = random.between(1, 60);
    const std::uint32_t table_blocks = to.width + random.below(9);
    const std::uint64_t table_stride = std::uint64_t{table_rows} * 2 * table_blocks + random.below(3);
    const Ints values = random.pages(to.pools * table_stride);
    const PinnedMemory table(device, values.size() * sizeof(std::int32_t));
    const PinnedMemory index(device, to.rows * sizeof(std::int32_t));
    std::memcpy(table.data(), values.data(), table.bytes());
    auto* copy_index = static_cast<std::int32_t*>(index.data());
    std::generate_n(copy_index, to.rows, [&] { return static_cast<std::int32_t>(random.below(table_rows)); });
    const GatherHostRows call{to.for_reference(), values.data(), table_stride, table_blocks, copy_index,
                              to.pools,           to.rows,       to.width,     to.scale};
    return agrees(*device, stream, call, to.memory, [&](GatherHostRows& moved) {
        moved.dst = to.for_kernel();
        moved.table = reinterpret_cast<const std::int32_t*>(table.device_address());
        moved.copy_index = reinterpret_cast<const std::int32_t*>(index.device_address());
    });
}

bool gather_device(const std::shared_ptr<Device>& device, Random& random, StreamHandle stream) {
    Offsets to(device, random);
    const std::uint32_t planes = random.between(1, 2);
    const std::uint32_t table_rows = random.between(1, 60);
    const std::uint32_t row_stride = planes * (to.width + random.below(9));
    const std::uint64_t table_stride = std::uint64_t{table_rows} * row_stride + random.below(3);
    Twin<std::int32_t> table(device, random.pages(to.pools * table_stride), random.below(3));
    std::vector<std::uint32_t> rows(to.rows);
    std::ranges::generate(rows, [&] { return random.below(table_rows); });
    Twin<std::uint32_t> index(device, rows);
    const GatherDeviceRows call{to.for_reference(), table.host(), table_stride, row_stride, index.host(),
                                to.pools,           to.rows,      to.width,     planes,     to.scale};
    return agrees(*device, stream, call, to.memory, [&](GatherDeviceRows& moved) {
        moved.dst = to.for_kernel();
        moved.table = table.on_device();
        moved.row_index = index.on_device();
    });
}

// Copies across the device or, as offload does it, to and from pinned memory.
bool copy_blocks(const std::shared_ptr<Device>& device, Random& random, StreamHandle stream) {
    const std::uint64_t bytes =
        16 * std::uint64_t{random.below(4) == 0 ? random.between(1, 8) : random.between(1, 3000)};
    const std::uint32_t blocks = random.between(1, 50);
    const std::size_t ints = bytes / sizeof(std::int32_t) * blocks;
    Twin<std::int32_t> src(device, random.pages(ints));
    Twin<std::int32_t> dst(device, random.pages(ints));
    const PinnedMemory stopover(device, ints * sizeof(std::int32_t));
    std::vector<std::uint32_t> places(blocks);
    std::iota(places.begin(), places.end(), 0U);
    random.shuffle(places);
    std::vector<BlockPair> to_host;
    std::vector<BlockPair> from_host;
    std::vector<BlockPair> for_reference;
    const std::uint32_t moved_blocks = random.between(1, blocks);
    for (std::uint32_t i = 0; i < moved_blocks; ++i) {
        const std::uint64_t from = i * bytes;
        const std::uint64_t to = places[i] * bytes;
        to_host.push_back({stopover.device_address() + from, src.address() + from});
        from_host.push_back({dst.address() + to, stopover.device_address() + from});
        for_reference.push_back(
            {reinterpret_cast<std::uintptr_t>(dst.host()) + to, reinterpret_cast<std::uintptr_t>(src.host()) + from});
    }
    Twin<BlockPair> first(device, to_host);
    Twin<BlockPair> second(device, from_host);
    device->launch(CopyBlocks{first.on_device(), moved_blocks, bytes}, stream);
    return agrees(*device, stream, CopyBlocks{for_reference.data(), moved_blocks, bytes}, dst,
                  [&](CopyBlocks& moved) { moved.pairs = second.on_device(); });
}

bool digest(const std::shared_ptr<Device>& device, Random& random, StreamHandle stream) {
    const std::uint64_t layer_bytes =
        16 * std::uint64_t{random.below(4) == 0 ? random.between(1, 8) : random.between(1, 9000)};
    const std::uint32_t layers = random.between(1, 8);
    const std::uint32_t blocks = random.between(1, 20);
    const std::uint32_t parts = random.between(1, 9);
    Twin<std::int32_t> memory(device, random.pages(blocks * layers * layer_bytes / sizeof(std::int32_t)));
    Twin<std::uint64_t> sums(device, std::vector<std::uint64_t>(std::size_t{blocks} * layers * parts, 5));
    std::vector<std::uint64_t> for_reference;
    std::vector<std::uint64_t> for_kernel;
    for (std::uint32_t block = 0; block < blocks; ++block) {
        const std::uint64_t begin = (blocks - 1 - block) * layers * layer_bytes;
        for_reference.push_back(reinterpret_cast<std::uintptr_t>(memory.host()) + begin);
        for_kernel.push_back(memory.address() + begin);
    }
    Twin<std::uint64_t> addresses(device, for_kernel);
    const DigestBlocks call{for_reference.data(),           sums.host(), blocks, layers, parts, layer_bytes,
                            random.below(1 << 30) * 7919ULL};
    return agrees(*device, stream, call, sums, [&](DigestBlocks& moved) {
        moved.blocks = addresses.on_device();
        moved.sums = sums.on_device();
    });
}

bool fill(const std::shared_ptr<Device>& device, Random& random, StreamHandle stream) {
    const std::uint32_t size = random.between(1, 1 << 20);
    Twin<std::uint32_t> words(device, std::vector<std::uint32_t>(size, 5), random.below(4));
    const std::uint32_t begin = random.below(std::min(size, 9U));
    const FillWords call{words.host() + begin, random.between(0, size - begin), random.below(1 << 30)};
    return agrees(*device, stream, call, words, [&](FillWords& moved) { moved.words = words.on_device() + begin; });
}

struct Kind {
    const char* name;
    bool (*check)(const std::shared_ptr<Device>&, Random&, StreamHandle);
};
constexpr Kind kKinds[] = {
    {"ExpandRows", expand},      {"GatherHostRows", gather_host}, {"GatherDeviceRows", gather_device},
    {"CopyBlocks", copy_blocks}, {"DigestBlocks", digest},        {"FillWords", fill}};

}  // namespace

void check_kernels(Checks& checks) {
    const OwnStream stream(checks.device);
    for (const Kind& kind : kKinds) {
        for (std::uint64_t seed = 0; seed < kRounds; ++seed) {
            Random random(seed);
            checks.expect(kind.check(checks.device, random, stream.handle),
                          std::string(kind.name) + " differs from its reference, seed " + std::to_string(seed));
        }
    }
}

// If the driver loaded a kernel at its first launch, the launch would fail here, because loading waits for held
// streams.
void check_first_launches(Checks& checks) {
    Device& device = *checks.device;
    const OwnStream stream(checks.device);
    const DeviceMemory zeroed(checks.device, 1 << 16);
    const PinnedMemory pair(checks.device, sizeof(BlockPair));
    *static_cast<BlockPair*>(pair.data()) = {zeroed.address() + 4096, zeroed.address()};
    const EventHandle event = device.create_event();
    auto* words = reinterpret_cast<std::uint32_t*>(zeroed.address());
    auto* ints = reinterpret_cast<std::int32_t*>(zeroed.address());
    const OffsetDestination to{ints, 16, 8};
    const auto* pairs = reinterpret_cast<const BlockPair*>(pair.device_address());

    const GateHandle gate = device.close_gate(stream.handle);
    device.launch(FillWords{words, 1 << 14, 0}, stream.handle);
    device.launch(ExpandRows{to, ints + 64, 1, 1, 8, {}}, stream.handle);
    device.launch(GatherHostRows{to, ints + 64, 16, 8, ints + 128, 1, 1, 8, {}}, stream.handle);
    device.launch(GatherDeviceRows{to, ints + 64, 16, 16, words + 128, 1, 1, 8, 2, {}}, stream.handle);
    device.launch(CopyBlocks{pairs, 1, 4096}, stream.handle);
    device.launch(DigestBlocks{&pairs->src, reinterpret_cast<std::uint64_t*>(words + 256), 1, 1, 1, 512, 1},
                  stream.handle);
    device.record(event, stream.handle);
    checks.expect(!device.done(event), "kernels behind a closed gate are pending");
    device.open_gate(gate);
    device.wait(event);
    checks.expect(device.done(event), "each kernel can be launched for the first time behind a closed gate");
    device.destroy_event(event);
}

}  // namespace kvfix
