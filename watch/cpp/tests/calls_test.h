// A program's calls of the driver, as CUPTI tells them: arguments behind one another as in a structure of C, and what
// they point to in words of eight bytes, so that nothing of the library's own declarations is trusted here.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "fake_pages.h"
#include "hostrace/calls.h"

namespace hostrace {

using Word = std::uint64_t;
constexpr std::uintptr_t kHost = std::uintptr_t{1} << 32;
constexpr std::uintptr_t kOther = kHost + 64 * kPage;
constexpr Word kDevice = Word{1} << 45;
constexpr std::size_t kBytes = 16 * kPage;

template <std::size_t count>
using Words = std::array<Word, count>;

struct Node {
    int type = -1;
    const void* params = nullptr;  // of a child: its graph
    std::size_t bytes = 0;
};
using Graph = std::vector<Node>;

// What the driver is asked for, and what it answers.
struct FakeDriver {
    inline static std::vector<std::pair<cuda::Handle, std::uint32_t>> written;
    inline static volatile std::uint32_t* word = nullptr;  // of the stream that wrote last
    inline static std::array<std::size_t, 2> parameter_bytes{};
    inline static Words<6> conditional{};
    static constexpr Word kAllocationOfHost = 0x11, kAllocationOfDevice = 0x22;

    static Driver made() {
        Driver driver;
        driver.write_value = [](cuda::Handle stream, cuda::Address to, std::uint32_t value, unsigned) {
            written.emplace_back(stream, value);
            word = reinterpret_cast<volatile std::uint32_t*>(to);
            return cuda::kSuccess;
        };
        driver.is_capturing = [](cuda::Handle stream, int* status) {
            *status = stream == reinterpret_cast<cuda::Handle>(99) ? 1 : 0;
            return cuda::kSuccess;
        };
        driver.host_register = [](void*, std::size_t, unsigned) { return cuda::kSuccess; };
        driver.device_pointer = [](cuda::Address* device, void* host, unsigned) {
            *device = reinterpret_cast<cuda::Address>(host);
            return cuda::kSuccess;
        };
        driver.exchange_capture_mode = [](int*) { return cuda::kSuccess; };
        driver.function_param = [](cuda::Handle, std::size_t index, std::size_t* offset, std::size_t* bytes) {
            if (index >= parameter_bytes.size() || parameter_bytes[index] == 0) {
                return 1;
            }
            *offset = index == 0 ? 0 : parameter_bytes[0];
            *bytes = parameter_bytes[index];
            return cuda::kSuccess;
        };
        driver.allocation_properties = [](cuda::AllocationProperties* made, std::uint64_t allocation) {
            const Words<4> given{1, allocation == kAllocationOfHost ? 3U : 1U, 0, 0};
            static_assert(sizeof given == sizeof *made);
            std::memcpy(static_cast<void*>(made), &given, sizeof given);
            return cuda::kSuccess;
        };
        driver.graph_nodes = [](cuda::Handle graph, cuda::Handle* nodes, std::size_t* count) {
            auto& made = *static_cast<Graph*>(graph);
            for (std::size_t at = 0; nodes != nullptr && at < made.size(); ++at) {
                nodes[at] = &made[at];
            }
            *count = made.size();
            return cuda::kSuccess;
        };
        driver.node_type = [](cuda::Handle node, int* type) {
            *type = static_cast<Node*>(node)->type;
            return cuda::kSuccess;
        };
        driver.memcpy_node = [](cuda::Handle node, cuda::Copy3d* params) { return copied(node, params); };
        driver.memset_node = [](cuda::Handle node, cuda::MemsetNode* params) { return copied(node, params); };
        driver.kernel_node = [](cuda::Handle node, cuda::KernelNode* params) { return copied(node, params); };
        driver.child_graph = [](cuda::Handle node, cuda::Handle* graph) {
            *graph = const_cast<void*>(static_cast<Node*>(node)->params);
            return cuda::kSuccess;
        };
        return driver;
    }

  private:
    template <typename Params>
    static int copied(cuda::Handle handle, Params* params) {
        const Node& node = *static_cast<Node*>(handle);
        EXPECT_EQ(node.bytes, sizeof *params);
        std::memcpy(static_cast<void*>(params), node.params, sizeof *params);
        return cuda::kSuccess;
    }
};

class CallsTest : public testing::Test {
  protected:
    CallsTest() {
        FakeDriver::written.clear();
        FakeDriver::parameter_bytes = {};
        races_before_ = races();
        begins(301);
        for (const std::uintptr_t begin : {kHost, kOther}) {
            told(301, begin, kBytes, 0U);
        }
    }
    // A call that is looked at when it returns begins.
    void begins(std::uint32_t number) { tell(cupti::kEnter, 0, number); }
    // The call has returned, or begins, with these arguments.
    template <typename... Arguments>
    void told(std::uint32_t number, Arguments... arguments) {
        tell(cupti::kExit, 0, number, arguments...);
    }
    template <typename... Arguments>
    void tell(int site, int result, std::uint32_t number, Arguments... arguments) {
        alignas(16) std::array<char, 256> packed{};
        std::size_t end = 0;
        [[maybe_unused]] const auto put = [&](const auto& value) {
            end = (end + alignof(decltype(value)) - 1) / alignof(decltype(value)) * alignof(decltype(value));
            std::memcpy(packed.data() + end, static_cast<const void*>(&value), sizeof value);
            end += sizeof value;
        };
        (put(arguments), ...);
        cupti::CallbackData data{};
        data.site = site;
        data.arguments = packed.data();
        data.result = &result;
        data.context = &context_;
        calls_->on_call(number, data);
    }
    // The bytes [begin, begin + bytes) in use, and none beside them that a use could have.
    void expect_use(std::uintptr_t begin, std::size_t bytes, bool device_writes, Kind kind) {
        for (const std::uintptr_t at : {begin, begin + bytes - 1}) {
            const Verdict seen = watch_->guard.touch(at, 1, device_writes ? Access::read : Access::write);
            ASSERT_EQ(seen.answer, Answer::race) << std::hex << at;
            EXPECT_EQ(seen.use.kind, kind);
            EXPECT_EQ(seen.use.device_writes, device_writes);
            EXPECT_EQ(seen.use.shape.begin, begin);
            EXPECT_EQ(seen.use.shape.end(), begin + bytes);
        }
        forget();
        EXPECT_TRUE(watch_->guard.idle());
    }
    // That this test was told of: the tests of a process share the counts.
    std::uint64_t races() const {
        std::uint64_t sum = 0 - races_before_;
        for (const Counts::Count& times : watch_->counts.times) {
            sum += times.load();
        }
        return sum;
    }
    void expect_no_use() { EXPECT_TRUE(watch_->guard.idle()); }
    void forget() {
        if (!watch_->guard.idle()) {
            *FakeDriver::word = FakeDriver::written.back().second;
            told(17);
        }
    }

    FakePages pages_;
    std::unique_ptr<Watcher> watch_ = std::make_unique<Watcher>(nullptr, 1, true, false, pages_);
    Driver driver_ = FakeDriver::made();
    std::unique_ptr<Calls> calls_ = std::make_unique<Calls>(*watch_, driver_);
    std::uint64_t races_before_ = 0;
    char context_ = 0;
    cuda::Handle stream_ = &context_;
    // Layouts of parameters are remembered for as long as the process runs.
    inline static Word functions = 0;
    const Word function_ = functions += 16;
};

}  // namespace hostrace
