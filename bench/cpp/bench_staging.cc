// Snapshots on a device that does nothing. Between two ships the caches are walked over, as the rest of an iteration
// would do. The time of the walk and of the changes is not counted.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <random>

#include "null_device.h"
#include "staging/offset_stager.h"

namespace kvfix::bench {
namespace {

constexpr std::uint32_t kPages = 1 << 20;
// Fixed, because the part that is not counted takes longer than the part that is.
constexpr std::int64_t kIterations = 200;
constexpr std::size_t kWalkBytes = std::size_t{8} << 20;

// A live table (1, rows, 2, blocks), and memory that stands for whatever else lies in the caches.
class Scene {
  public:
    Scene(std::uint32_t rows, std::uint32_t blocks)
        : rows_(rows), blocks_(blocks), table_(std::size_t{rows} * 2 * blocks), walked_(kWalkBytes) {
        for (std::int32_t& entry : table_) {
            entry = page();
        }
        std::iota(batch_.begin(), batch_.end(), 0U);
    }
    // Puts new pages in a row, then walks over the caches.
    void next_iteration() {
        const std::size_t row_begin = random_() % rows_ * 2 * blocks_;
        for (std::size_t i = 0; i < std::size_t{2} * blocks_; ++i) {
            table_[row_begin + i] = page();
        }
        std::memset(walked_.data(), static_cast<int>(random_()), walked_.size());
        benchmark::DoNotOptimize(walked_.data());
    }
    Shipment shipment() const {
        const std::size_t row = std::size_t{2} * blocks_;
        return {.dst = {.data = nullptr, .pool_stride = rows_ * row, .blocks = blocks_},
                .table = {.data = table_.data(),
                          .pool_stride = rows_ * row,
                          .row_stride = row,
                          .plane_stride = blocks_,
                          .pools = 1,
                          .rows = rows_,
                          .blocks = blocks_},
                .rows = batch_,
                .width = blocks_,
                .stream = {1}};
    }

  private:
    std::int32_t page() { return static_cast<std::int32_t>(random_() % kPages); }

    std::minstd_rand random_{7};
    std::uint32_t rows_, blocks_;
    std::vector<std::int32_t> table_;
    std::vector<std::uint32_t> batch_ = std::vector<std::uint32_t>(rows_);
    std::vector<char> walked_;
};

template <class Work>
void time_only(benchmark::State& state, const Work& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

void ship(benchmark::State& state, OffsetLayout layout, StagerMode mode) {
    const auto rows = static_cast<std::uint32_t>(state.range(0));
    const auto blocks = static_cast<std::uint32_t>(state.range(1));
    Scene scene(rows, blocks);
    const StagerConfig config{.layout = layout, .num_pools = 1, .rows_max = rows, .blocks_max = blocks};
    OffsetStager stager(std::make_shared<NullDevice>(), config, mode);
    for (auto _ : state) {
        scene.next_iteration();
        time_only(state, [&] { stager.ship(scene.shipment(), rows); });
    }
}

void staging_cases(benchmark::internal::Benchmark* bench) {
    bench->UseManualTime()->Iterations(kIterations)->ArgNames({"rows", "blocks"});
    bench->Args({8, 64})->Args({64, 256})->Args({256, 1024})->Args({2048, 1024});
}
BENCHMARK_CAPTURE(ship, v1_snapshot, OffsetLayout::v1, StagerMode::snapshot)->Apply(staging_cases);
BENCHMARK_CAPTURE(ship, v2_snapshot, OffsetLayout::v2, StagerMode::snapshot)->Apply(staging_cases);

}  // namespace
}  // namespace kvfix::bench
