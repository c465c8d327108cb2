// Staging on a device that does nothing: comparing by each vector width, and whole ships alone and with a team. The caches are walked
// over between two ships, as the rest of an iteration would; what the walk and the changes take is not counted.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <random>

#include "null_device.h"
#include "staging/offset_stager.h"
#include "staging/row_diff.h"

namespace kvfix::bench {
namespace {

constexpr std::uint32_t kPages = 1 << 20;
// Fixed, because what is not counted takes longer than what is.
constexpr std::int64_t kIterations = 200;
constexpr std::size_t kWalkBytes = std::size_t{8} << 20;

// A live table (1, rows, 2, blocks) and whatever lies in the caches besides.
class Scene {
  public:
    Scene(std::uint32_t rows, std::uint32_t blocks)
        : rows_(rows), blocks_(blocks), table_(std::size_t{rows} * 2 * blocks), walked_(kWalkBytes) {
        for (std::int32_t& entry : table_) {
            entry = page();
        }
        std::iota(batch_.begin(), batch_.end(), 0U);
    }
    // New pages in so many percent of the rows, whole rows or scattered entries; then a walk.
    void next_iteration(std::int64_t percent, bool scattered) {
        const std::size_t changes = table_.size() * static_cast<std::size_t>(percent) / 100;
        const std::size_t row_begin = random_() % rows_ * 2 * blocks_;
        for (std::size_t i = 0; i < changes; ++i) {
            table_[scattered ? random_() % table_.size() : (row_begin + i) % table_.size()] = page();
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
    const std::int32_t* row(std::uint32_t number) const { return table_.data() + std::size_t{number} * 2 * blocks_; }

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

void staging_compare(benchmark::State& state) {
    constexpr std::uint32_t kRows = 256;
    constexpr std::uint32_t kBlocks = kPieceMax;
    const auto width = static_cast<DiffWidth>(state.range(0));
    const bool fetch_ahead = state.range(1) != 0;
    if (!can_diff(width)) {
        state.SkipWithError("this machine has no vectors of that width");
        return;
    }
    Scene scene(kRows, kBlocks);
    std::vector<std::int32_t> shadow(std::size_t{kRows} * kBlocks);
    for (std::uint32_t row = 0; row < kRows; ++row) {
        std::memcpy(shadow.data() + std::size_t{row} * kBlocks, scene.row(row), kBlocks * sizeof(std::int32_t));
    }
    const auto piece = [&](std::uint32_t row) -> RowPiece {
        return {scene.row(row), shadow.data() + std::size_t{row} * kBlocks, kBlocks, row * kBlocks};
    };
    std::vector<TableEntry> found(kPieceMax + kDiffSlack);
    const FindChanges find = diff_by(width);
    for (auto _ : state) {
        scene.next_iteration(0, false);
        time_only(state, [&] {
            for (std::uint32_t row = 0; row < kRows; ++row) {
                const std::uint32_t next = fetch_ahead ? std::min(row + 1, kRows - 1) : row;
                benchmark::DoNotOptimize(find(piece(row), piece(next), found.data()));
            }
        });
    }
    state.SetBytesProcessed(state.iterations() * 2 * kRows * kBlocks * static_cast<std::int64_t>(sizeof(std::int32_t)));
}
BENCHMARK(staging_compare)
    ->UseManualTime()
    ->Iterations(kIterations)
    ->ArgNames({"width", "ahead"})
    ->ArgsProduct({{static_cast<int>(DiffWidth::portable), static_cast<int>(DiffWidth::avx2),
                    static_cast<int>(DiffWidth::avx512)},
                   {0, 1}});

void ship(benchmark::State& state, OffsetLayout layout, StagerMode mode) {
    const auto rows = static_cast<std::uint32_t>(state.range(0));
    const auto blocks = static_cast<std::uint32_t>(state.range(1));
    Scene scene(rows, blocks);
    StagerConfig config{.layout = layout, .num_pools = 1, .rows_max = rows, .blocks_max = blocks};
    config.team = std::make_shared<WorkerTeam>(static_cast<unsigned>(state.range(4)));
    OffsetStager stager(std::make_shared<NullDevice>(), config, mode);
    for (auto _ : state) {
        scene.next_iteration(state.range(2), state.range(3) != 0);
        time_only(state, [&] { stager.ship(scene.shipment(), rows); });
    }
    const StagerStats stats = stager.stats();
    state.counters["entries"] = static_cast<double>(stats.entries_changed) / static_cast<double>(stats.ships);
}

void staging_cases(benchmark::internal::Benchmark* bench) {
    bench->UseManualTime()->Iterations(kIterations)->ArgNames({"rows", "blocks", "percent", "scattered", "workers"});
    for (const std::int64_t workers : {0, 1, 2, 3, 4}) {
        bench->Args({256, 1024, 3, 0, workers});
    }
    bench->Args({256, 1024, 0, 0, 0})->Args({256, 1024, 3, 1, 0})->Args({256, 1024, 100, 0, 0});
    bench->Args({8, 64, 3, 0, 0})->Args({64, 256, 3, 0, 0})->Args({2048, 1024, 3, 0, 0})->Args({2048, 1024, 3, 0, 4});
}
BENCHMARK_CAPTURE(ship, v1_snapshot, OffsetLayout::v1, StagerMode::snapshot)->Apply(staging_cases);
BENCHMARK_CAPTURE(ship, v2_snapshot, OffsetLayout::v2, StagerMode::snapshot)->Apply(staging_cases);
BENCHMARK_CAPTURE(ship, v1_device_table, OffsetLayout::v1, StagerMode::device_table)->Apply(staging_cases);
BENCHMARK_CAPTURE(ship, v2_device_table, OffsetLayout::v2, StagerMode::device_table)->Apply(staging_cases);

}  // namespace
}  // namespace kvfix::bench
