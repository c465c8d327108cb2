// A lane over a probe device, with marks, a block of the device and as much pinned memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lanes/transfer_lane.h"
#include "tests/staging/staging_fixture.h"

namespace kvfix {

using std::chrono::milliseconds;

inline constexpr std::size_t kWords = 128;
inline constexpr milliseconds kLong{60000};
inline constexpr milliseconds kShort{20};

class TransferLaneTest : public StagingTest {
  protected:
    void TearDown() override {
        StagingTest::TearDown();
        lane.reset();
        marks.reset();
    }
    // The number of the job, where the lane takes it.
    std::optional<std::uint64_t> enqueue(std::vector<CopySpan> spans, MarkPtr after) {
        const std::uint64_t job = ++jobs;
        const LaneAnswer answer = lane->enqueue(job, std::move(spans), std::move(after));
        return answer == LaneAnswer::taken ? std::optional(job) : std::nullopt;
    }
    std::optional<std::uint64_t> store(MarkPtr after = nullptr) {
        return enqueue({span_of(host, block)}, std::move(after));
    }
    LaneAnswer offer(std::uint64_t job, MarkPtr after = nullptr) {
        return lane->enqueue(job, {span_of(host, block)}, std::move(after));
    }
    EndedTransfer ended(std::optional<std::uint64_t> number) {
        EXPECT_TRUE(number && lane->wait(*number, kLong));
        const std::vector<EndedTransfer> all_ended = lane->take_ended();
        return all_ended.empty() ? EndedTransfer{} : all_ended.back();
    }
    void reopen(const LaneConfig& config) {
        lane.reset();
        lane.emplace(device, config);
    }

    // Of two words each: as many as two streams share.
    std::vector<CopySpan> shares() const {
        std::vector<CopySpan> spans;
        for (std::size_t i = 0; i < kWords; i += 2) {
            spans.push_back(span_of(host.subspan(i, 2), block.subspan(i, 2)));
        }
        return spans;
    }

    std::atomic<std::uint64_t> jobs = 0;
    std::shared_ptr<Marks> marks = std::make_shared<Marks>(device, 4);
    std::optional<TransferLane> lane{std::in_place, device, LaneConfig{}};
    Words block = device_words(kWords);
    Words host = pinned(kWords);
};

}  // namespace kvfix
