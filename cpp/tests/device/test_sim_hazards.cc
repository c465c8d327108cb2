// The hazards that this project is about, on the simulated device. A gate holds each unsafe arm until the harm is done,
// so it corrupts every time. Each safe arm never corrupts. Nothing depends on time.
#include "sim_fixture.h"

namespace kvfix {
namespace {

constexpr int kIterations = 150;
constexpr std::size_t kWords = 64;

class SimHazardTest : public SimDeviceTest {
  protected:
    // Everything that `enqueue` puts on `stream` is pending until `meanwhile` returns.
    template <typename Enqueue, typename Meanwhile>
    void while_held(Enqueue&& enqueue, Meanwhile&& meanwhile) {
        const GateHandle gate = device.close_gate(stream);
        enqueue();
        device.record(held, stream);
        ASSERT_FALSE(device.done(held)) << "nothing behind a closed gate may have run";
        meanwhile();
        ASSERT_FALSE(device.done(held));
        device.open_gate(gate);
        device.synchronize(stream);
        ASSERT_TRUE(device.done(held));
    }

    EventHandle held = device.create_event();
    StreamHandle other = device.create_stream();
};

TEST_F(SimHazardTest, OnePinnedBufferRefilledWhileItsCopyIsPending) {
    const Words persistent = pinned(kWords);
    const Words target = device_words(kWords);
    int corrupt = 0;
    for (int i = 0; i < kIterations; ++i) {
        racy_fill(persistent, i);
        while_held([&] { copy(target, persistent, stream); }, [&] { racy_fill(persistent, 1000 + i); });
        corrupt += values(target) == all(kWords, 1000 + i) ? 1 : 0;
    }
    EXPECT_EQ(corrupt, kIterations);
}

TEST_F(SimHazardTest, ABufferOfItsOwnIsNotTouched) {
    const Words target = device_words(kWords);
    int corrupt = 0;
    for (int i = 0; i < kIterations; ++i) {
        const Words persistent = pinned(kWords);
        const Words staged = pinned(kWords);
        racy_fill(persistent, i);
        racy_fill(staged, i);
        while_held([&] { copy(target, staged, stream); }, [&] { racy_fill(persistent, 1000 + i); });
        corrupt += values(target) != all(kWords, i) ? 1 : 0;
        device.unmap_pinned(staged.data(), staged.size_bytes());
        device.unmap_pinned(persistent.data(), persistent.size_bytes());
    }
    EXPECT_EQ(corrupt, 0);
}

// Here the launch is pending. The address was taken when the graph was captured.
TEST_F(SimHazardTest, AGraphReadsItsSourcesWhenItRunsNotWhenItWasCapturedOrLaunched) {
    const Words persistent = pinned(kWords);
    const Words target = device_words(kWords);
    const CopySpan span = span_of(target, persistent);
    const GraphHandle graph = device.capture_copies({&span, 1});
    for (int i = 0; i < kIterations; ++i) {
        racy_fill(persistent, i);
        while_held([&] { device.launch_graph(graph, stream); }, [&] { racy_fill(persistent, 1000 + i); });
        ASSERT_EQ(values(target), all(kWords, 1000 + i));
    }
    device.destroy_graph(graph);
}

TEST_F(SimHazardTest, WhoWaitsForAnEventBehindTheLaunchMayWriteTheSourcesOfAGraph) {
    const Words persistent = pinned(kWords);
    const Words target = device_words(kWords);
    const CopySpan span = span_of(target, persistent);
    const GraphHandle graph = device.capture_copies({&span, 1});
    for (int i = 0; i < kIterations; ++i) {
        racy_fill(persistent, i);
        device.launch_graph(graph, stream);
        device.record(held, stream);
        device.wait(held);
        racy_fill(persistent, 1000 + i);
        device.synchronize(stream);
        ASSERT_EQ(values(target), all(kWords, i));
    }
}

TEST_F(SimHazardTest, AGraphMayBeDestroyedWhileItsLaunchIsPending) {
    const Words persistent = pinned(kWords);
    const Words target = device_words(kWords);
    const CopySpan span = span_of(target, persistent);
    const GraphHandle graph = device.capture_copies({&span, 1});
    racy_fill(persistent, 5);
    while_held([&] { device.launch_graph(graph, stream); }, [&] { device.destroy_graph(graph); });
    EXPECT_EQ(values(target), all(kWords, 5));
    EXPECT_CONTAINS(error_of([&] { device.launch_graph(graph, stream); }), "graph " + std::to_string(graph.value));
    EXPECT_CONTAINS(error_of([&] { device.destroy_graph(graph); }), "already gone");
}

TEST_F(SimHazardTest, AGraphOfMemoryThatNobodyHasIsRefusedWhenItIsCaptured) {
    std::int32_t own = 0;
    const CopySpan span{address_of(&own), address_of(&own), sizeof own};
    EXPECT_CONTAINS(error_of([&] { device.capture_copies({&span, 1}); }), "copy source");
}

// A kernel that reads pinned memory: both the table's rows and the copy index are reused in place.
class SimGatherTest : public SimHazardTest {
  protected:
    static constexpr std::uint32_t kBlocks = 4;
    GatherHostRows call() const {
        GatherHostRows gather{};
        gather.dst = {target.data(), target.size(), kBlocks};
        gather.table = table.data();
        gather.table_pool_stride = table.size();
        gather.table_blocks = kBlocks;
        gather.copy_index = index.data();
        gather.pools = gather.rows = 1;
        gather.width = kBlocks;
        gather.scale.scale[0] = 1;
        return gather;
    }
    void fill_rows(std::int32_t first) {
        racy_fill(table.subspan(0, kBlocks), first);
        racy_fill(table.subspan(std::size_t{2} * kBlocks, kBlocks), first + 1);
    }

    Words table = pinned(std::size_t{2} * 2 * kBlocks);
    Words index = pinned(1);
    Words target = device_words(std::size_t{2} * kBlocks);
};

TEST_F(SimGatherTest, ReadsRowsThatWereReboundMeanwhile) {
    for (int i = 0; i < kIterations; ++i) {
        fill_rows(i);
        racy_fill(index, 1);
        while_held([&] { device.launch(call(), stream); }, [&] { fill_rows(1000 + i); });
        ASSERT_EQ(values(target), all(target.size(), 1001 + i));
    }
}

TEST_F(SimGatherTest, ReadsAnIndexThatWasRewrittenMeanwhile) {
    for (int i = 0; i < kIterations; ++i) {
        fill_rows(i);
        racy_fill(index, 1);
        while_held([&] { device.launch(call(), stream); }, [&] { racy_fill(index, 0); });
        ASSERT_EQ(values(target), all(target.size(), i));
    }
}

// Offload of a block that compute has yet to write: `other` copies, `stream` computes.
class SimStoreTest : public SimHazardTest, public ::testing::WithParamInterface<SourceOrder> {
  protected:
    void store() {
        const CopySpan span = span_of(host, block);
        device.copy_batch({&span, 1}, GetParam(), other);
    }

    Words block = device_words(kWords);
    Words host = pinned(kWords);
};

TEST_P(SimStoreTest, WithoutABarrierSavesWhatWasThereBefore) {
    for (int i = 0; i < kIterations; ++i) {
        racy_fill(block, -1);
        while_held([&] { fill(block, static_cast<std::uint32_t>(i), stream); },
                   [&] {
                       store();
                       device.synchronize(other);
                   });
        ASSERT_EQ(values(host), all(kWords, -1));
    }
}

TEST_F(SimHazardTest, ABarrierMakesAStoreWaitForTheWriter) {
    const Words block = device_words(kWords);
    const Words host = pinned(kWords);
    const CopySpan span = span_of(host, block);
    for (int i = 0; i < kIterations; ++i) {
        racy_fill(block, -1);
        const GateHandle gate = device.close_gate(stream);
        fill(block, static_cast<std::uint32_t>(i), stream);
        device.record(held, stream);
        device.make_wait(other, held);
        device.copy_batch({&span, 1}, SourceOrder::stream, other);
        device.open_gate(gate);
        device.synchronize(other);
        ASSERT_EQ(values(host), all(kWords, i));
    }
}

INSTANTIATE_TEST_SUITE_P(BothOrders, SimStoreTest, ::testing::Values(SourceOrder::stream, SourceOrder::any),
                         [](const auto& order) { return order.param == SourceOrder::any ? "any" : "stream"; });

// Counts how often a batch behind a closed gate shows what its source held at the call, instead of at execution.
class SimSourceOrderTest : public SimHazardTest {
  protected:
    int early_reads(SourceOrder order) {
        const Words source = pinned(kWords);
        const Words target = device_words(kWords);
        const CopySpan halves[] = {span_of(target.first(kWords / 2), source.first(kWords / 2)),
                                   span_of(target.last(kWords / 2), source.last(kWords / 2))};
        int early = 0;
        for (int i = 0; i < kIterations; ++i) {
            racy_fill(source, i);
            while_held([&] { device.copy_batch(halves, order, stream); }, [&] { racy_fill(source, 1000 + i); });
            const bool is_early = values(target) == all(kWords, i);
            EXPECT_TRUE(is_early || values(target) == all(kWords, 1000 + i)) << "a batch reads all its sources at once";
            early += is_early ? 1 : 0;
        }
        return early;
    }
};

TEST_F(SimSourceOrderTest, StreamReadsAtExecution) { EXPECT_EQ(early_reads(SourceOrder::stream), 0); }

TEST_F(SimSourceOrderTest, AnyReadsAtExecutionOrBefore) {
    const int early = early_reads(SourceOrder::any);
    EXPECT_GT(early, kIterations / 4);
    EXPECT_LT(early, kIterations * 3 / 4);
}

}  // namespace
}  // namespace kvfix
