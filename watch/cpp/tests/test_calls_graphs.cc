// Graphs: what their nodes use from each launch on, and what an update makes of it.
#include <gtest/gtest.h>

#include "calls_test.h"

namespace hostrace {
namespace {

constexpr int kKernel = 0, kCopy = 1, kMemset = 2, kEmpty = 5, kHostCall = 3, kChild = 4, kConditional = 13;

Words<25> upload(std::uintptr_t from) {
    return {0, 0, 0, 0, 1, from, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, kDevice, 0, 0, 0, 0, 300, 1, 1};
}
// Address, pitch, value and size of elements, width, height.
Words<5> memset(std::uintptr_t to) { return {to, 512, Word{2} << 32, 10, 3}; }

class GraphsTest : public CallsTest {
  protected:
    // A kernel's node: function, seven numbers, parameters, a buffer of them, the kernel of a library, a context.
    Words<9> kernel(const std::uintptr_t& pinned) {
        FakeDriver::parameter_bytes = {8, 0};
        params_ = {const_cast<std::uintptr_t*>(&pinned)};
        return {0, 0, 0, 0, 0, reinterpret_cast<Word>(params_.data()), 0, function_, 0};
    }
    template <std::size_t count>
    static Node node(int type, const Words<count>& params) {
        return {type, params.data(), sizeof params};
    }
    void instantiate(Graph& graph, std::uint32_t number = 643) {
        cuda::Handle* const result = &executable_;
        told(number, result, &graph, 0ULL);
    }
    void launch(std::uint32_t number = 514) { told(number, executable_, stream_); }
    void expect_launched(std::uintptr_t begin, std::size_t bytes, bool device_writes, Kind kind) {
        launch();
        expect_use(begin, bytes, device_writes, kind);
    }

    char executable_is_ = 0;
    cuda::Handle executable_ = &executable_is_;
    std::array<void*, 1> params_{};
};

TEST_F(GraphsTest, NodesAreInUseFromEachLaunch) {
    const Words<25> copy = upload(kHost);
    Graph graph{node(kCopy, copy), {kEmpty}};
    for (const std::uint32_t number : {513, 578, 643, 656, 657}) {
        instantiate(graph, number);
        expect_no_use();
        for (const std::uint32_t launched : {514, 515}) {
            launch(launched);
            expect_use(kHost, 300, false, Kind::graph_copy);
        }
        tell(cupti::kEnter, 0, 516, executable_);
        launch();
        expect_no_use();
    }
}

TEST_F(GraphsTest, WhereTheHostTakesPartItOrdersTheNodes) {
    const Words<25> copy = upload(kHost);
    Graph graph{node(kCopy, copy), {kHostCall}}, parent{{kChild, &graph}};
    for (Graph* each : {&graph, &parent}) {
        instantiate(*each);
        launch();
        expect_no_use();
    }
    EXPECT_EQ(watch_->counts.own_order.load(), 2U);
}

TEST_F(GraphsTest, ANodeThatIsDisabledUsesNothing) {
    const Words<25> copy = upload(kHost);
    Graph graph{node(kCopy, copy)};
    instantiate(graph);
    told(650, executable_, graph.data(), 0U);
    launch();
    expect_no_use();
    told(650, executable_, graph.data(), 1U);
    expect_launched(kHost, 300, false, Kind::graph_copy);
}

TEST_F(GraphsTest, EveryKindOfNode) {
    const Words<5> zeros = memset(kHost);
    Graph with_memset{node(kMemset, zeros)};
    instantiate(with_memset);
    expect_launched(kHost, 2 * 512 + 20, true, Kind::graph_memset);

    const std::uintptr_t pinned = kHost + 64;
    const Words<9> run = kernel(pinned);
    Graph with_kernel{node(kKernel, run)};
    instantiate(with_kernel);
    expect_launched(pinned, kBytes - 64, true, Kind::graph_kernel);

    Graph parent{{kChild, &with_memset}};
    instantiate(parent);
    expect_launched(kHost, 2 * 512 + 20, true, Kind::graph_memset);
}

// Handle, kind and number of the bodies, where they are, and a context, as the call that adds the node leaves them.
TEST_F(GraphsTest, BodiesOfConditionalNodesMayRun) {
    const Words<25> copy = upload(kHost);
    const Words<5> zeros = memset(kOther);
    Graph body{node(kCopy, copy)}, other{node(kMemset, zeros)}, graph{{kConditional}}, clone{{kConditional}};
    const std::array<Graph*, 2> bodies{&body, &other};
    const Words<6> params{kConditional, 0, 7, Word{2} << 32U, reinterpret_cast<Word>(bodies.data()), 0};
    cuda::Handle made = graph.data();
    const std::uintptr_t none = 0;
    const auto expect_maybe = [&](std::uintptr_t begin, std::size_t bytes, bool device_writes, Kind kind) {
        launch();
        EXPECT_EQ(watch_->guard.touch(begin, 1, Access::write).grade, Grade::possible);
        expect_use(begin, bytes, device_writes, kind);
    };
    const auto expect_both = [&] {
        expect_maybe(kHost, 300, false, Kind::conditional_copy);
        expect_maybe(kOther, 2 * 512 + 20, true, Kind::conditional_memset);
    };
    for (const std::uint32_t number : {712, 723}) {
        number == 712 ? told(number, &made, &graph, none, std::size_t{0}, &params)
                      : told(number, &made, &graph, none, none, std::size_t{0}, &params);
        instantiate(graph);
        expect_both();
        tell(cupti::kEnter, 0, 517, &graph);
        instantiate(graph);
        launch();
        expect_no_use();
    }
    const std::uint64_t unread = watch_->counts.unread_bodies;
    instantiate(clone);
    launch();
    expect_no_use();
    EXPECT_EQ(watch_->counts.unread_bodies, unread + 1);
    // A newer driver tells them.
    FakeDriver::conditional = params;
    driver_.any_node = [](cuda::Handle, cuda::NodeParams* told) {
        std::memcpy(static_cast<void*>(told), &FakeDriver::conditional, sizeof FakeDriver::conditional);
        return cuda::kSuccess;
    };
    instantiate(clone);
    expect_both();
    EXPECT_EQ(watch_->counts.unread_bodies, unread + 1);
}

TEST_F(GraphsTest, AnotherGraphTakesThePlaceOfTheFirst) {
    const Words<25> copy = upload(kHost), other = upload(kOther), third = upload(kOther + kPage);
    Graph graph{node(kCopy, copy)}, updated{node(kCopy, other)};
    for (const std::uint32_t number : {561, 696}) {
        instantiate(graph);
        told(number, executable_, &updated);
        expect_launched(kOther, 300, false, Kind::graph_copy);
        told(562, executable_, graph.data(), &third);  // nodes keep the names that they had first
        expect_launched(kOther + kPage, 300, false, Kind::graph_copy);
    }
}

TEST_F(GraphsTest, ANodeTakesNewParameters) {
    const Words<25> copy = upload(kHost), other = upload(kOther);
    const Words<5> zeros = memset(kHost), elsewhere = memset(kOther);
    const std::uintptr_t pinned = kHost, next = kOther;
    const Words<9> run = kernel(pinned);
    Graph child{node(kCopy, copy)}, another{node(kMemset, elsewhere)};
    Graph graph{node(kCopy, copy), node(kMemset, zeros), node(kKernel, run), {kChild, &child}};
    const Graph empty(4, Node{kEmpty});
    const Words<9> run_next = kernel(next);
    // Only the node that was set still uses anything.
    const auto expect_set = [&](std::size_t index, auto set, std::size_t bytes, bool device_writes, Kind kind) {
        Graph alone = empty;
        instantiate(alone);
        set(&alone[index]);
        expect_launched(kOther, bytes, device_writes, kind);
    };
    expect_set(0, [&](Node* at) { told(562, executable_, at, &other); }, 300, false, Kind::graph_copy);
    expect_set(1, [&](Node* at) { told(563, executable_, at, &elsewhere); }, 1044, true, Kind::graph_memset);
    for (const std::uint32_t number : {538, 692}) {
        const auto set = [&](Node* at) { told(number, executable_, at, &run_next); };
        expect_set(2, set, kBytes, true, Kind::graph_kernel);
    }
    expect_set(3, [&](Node* at) { told(586, executable_, at, &another); }, 1044, true, Kind::graph_memset);

    // By the one call for all: the kind, three numbers, and then as above; a copy has flags and a context in front.
    const auto any = [&](int type, const auto& words, std::size_t skip) {
        Words<32> made{static_cast<Word>(type)};
        std::copy(words.begin(), words.end(), made.begin() + 2 + static_cast<std::ptrdiff_t>(skip));
        return [this, made](Node* at) { told(714, executable_, at, &made); };
    };
    expect_set(0, any(kCopy, other, 2), 300, false, Kind::graph_copy);
    expect_set(1, any(kMemset, elsewhere, 0), 1044, true, Kind::graph_memset);
    expect_set(2, any(kKernel, run_next, 0), kBytes, true, Kind::graph_kernel);
    expect_set(3, any(kChild, Words<1>{reinterpret_cast<Word>(&another)}, 0), 1044, true, Kind::graph_memset);
    expect_set(
        0, [&](Node* at) { any(kEmpty, other, 0)(at), told(562, executable_, at, &other); }, 300, false,
        Kind::graph_copy);
}

}  // namespace
}  // namespace hostrace
