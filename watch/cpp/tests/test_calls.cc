// Each call of the driver by its number: which bytes of the host it uses, and how.
#include <gtest/gtest.h>

#include <thread>

#include "calls_test.h"

namespace hostrace {
namespace {

constexpr Word kIsHost = 1, kIsDevice = 2, kIsArray = 3, kIsAny = 4;

TEST_F(CallsTest, CopiesInOnePiece) {
    for (const std::uint32_t number : {277, 421, 306, 418}) {
        told(number, kDevice, kHost + 100, std::size_t{300}, stream_);
        expect_use(kHost + 100, 300, false, Kind::copy);
    }
    for (const std::uint32_t number : {279, 422, 306, 418}) {
        told(number, kHost + 100, kDevice, std::size_t{300}, stream_);
        expect_use(kHost + 100, 300, true, Kind::copy);
    }
    for (const std::uint32_t number : {281, 423}) {
        told(number, kDevice, kDevice + kBytes, std::size_t{300}, stream_);
        expect_no_use();
    }
}

TEST_F(CallsTest, CopiesFromAndToArrays) {
    for (const std::uint32_t number : {283, 420}) {
        told(number, kHost + 8, Word{7}, std::size_t{0}, std::size_t{300}, stream_);
        expect_use(kHost + 8, 300, true, Kind::copy);
    }
    for (const std::uint32_t number : {293, 419}) {
        told(number, Word{7}, std::size_t{0}, kHost + 8, std::size_t{300}, stream_);
        expect_use(kHost + 8, 300, false, Kind::copy);
    }
}

TEST_F(CallsTest, CopiesOfRows) {
    for (const std::uint32_t number : {289, 424}) {
        // x, y, kind, host, device, array and pitch of both sides, width, height
        const Words<16> to_device{3, 2, kIsHost, kHost, 0, 0, 512, 0, 0, kIsDevice, 0, kDevice, 0, 512, 200, 4};
        told(number, &to_device, stream_);
        expect_use(kHost + 2 * 512 + 3, 3 * 512 + 200, false, Kind::copy);
        const Words<16> to_host{0, 0, kIsArray, 0, 0, 9, 0, 0, 1, kIsAny, 0, kHost, 0, 256, 200, 4};
        told(number, &to_host, stream_);
        expect_use(kHost + 256, 3 * 256 + 200, true, Kind::copy);
    }
}

TEST_F(CallsTest, CopiesOfSlices) {
    for (const std::uint32_t number : {291, 425}) {
        // x, y, z, level, kind, host, device, array, -, pitch and height of both sides, width, height, depth
        const Words<25> to_device{4, 1, 1,         0, kIsHost, kHost, 0, 0,   0, 256, 8, 0, 0,
                                  0, 0, kIsDevice, 0, kDevice, 0,     0, 256, 8, 100, 2, 3};
        told(number, &to_device, stream_);
        expect_use(kHost + 8 * 256 + 256 + 4, 2 * 8 * 256 + 256 + 100, false, Kind::copy);
        const Words<25> to_host{0, 0, 0,       0,     kIsDevice, 0, kDevice, 0, 0, 0,   0, 0, 0,
                                0, 0, kIsHost, kHost, 0,         0, 0,       0, 0, 100, 2, 3};
        told(number, &to_host, stream_);
        expect_use(kHost, 600, true, Kind::copy);
    }
}

TEST_F(CallsTest, BatchesAskTheOrderOfEachCopy) {
    std::array<Word, 3> to{kDevice, kDevice, kOther}, from{kHost, kHost + 4 * kPage, kDevice};
    std::array<std::size_t, 3> bytes{100, 200, 300};
    std::array<std::array<int, 6>, 2> attributes{{{2}, {3}}};  // during the call, and in any order
    std::array<std::size_t, 2> begins{0, 1};
    const auto all_but_the_first = [&] {
        EXPECT_NE(watch_->guard.touch(kHost, 1, Access::write).answer, Answer::race);
        EXPECT_EQ(watch_->guard.touch(kHost + 4 * kPage + 199, 1, Access::write).answer, Answer::race);
        expect_use(kOther, 300, true, Kind::copy);
    };
    for (const std::uint32_t number : {796, 797}) {
        told(number, &to, &from, &bytes, std::size_t{3}, &attributes, &begins, std::size_t{2}, stream_);
        all_but_the_first();
    }
    for (const std::uint32_t number : {776, 777}) {
        std::size_t failed = 0;
        told(number, &to, &from, &bytes, std::size_t{3}, &attributes, &begins, std::size_t{2}, &failed, stream_);
        all_but_the_first();
    }
    told(796, &to, &from, &bytes, std::size_t{1}, &attributes, &begins, std::size_t{0}, stream_);
    expect_use(kHost, 100, false, Kind::copy);
}

// Programs that pin nothing have batches, others take all their memory from a pool, and use the default stream alone.
TEST_F(CallsTest, UsesAreWatchedWhicheverCallIsTheFirst) {
    driver_.pointer_attribute = [](void*, int, cuda::Address) { return 1; };  // no memory is the driver's
    std::array<Word, 1> to{kDevice}, from{1};
    std::array<std::size_t, 1> bytes{100};
    const auto has_marked = [&] {
        FakeDriver::written.clear();
        told(796, &to, &from, &bytes, std::size_t{1}, nullptr, nullptr, std::size_t{0}, stream_);
        return !FakeDriver::written.empty();
    };
    for (const std::uint32_t number : {17, 39, 126, 301, 306, 307, 371, 418, 514, 553, 611, 612, 659, 796}) {
        calls_ = std::make_unique<Calls>(*watch_, driver_);
        EXPECT_FALSE(has_marked()) << number;
        begins(number);
        EXPECT_TRUE(has_marked()) << number;
        forget();
        told(17);
    }
}

TEST_F(CallsTest, AContextThatRefusesIsNotAskedAgain) {
    static int asked = 0;
    const std::array<char, 2> contexts{};
    driver_.host_register = [](void*, std::size_t, unsigned) { return ++asked; };
    calls_ = std::make_unique<Calls>(*watch_, driver_);
    for (const void* context : {&contexts[0], &contexts[1], &contexts[0], &contexts[1], &contexts[1]}) {
        calls_->streams.prepare(context);
    }
    EXPECT_EQ(asked, 2);
}

TEST_F(CallsTest, BatchesOfSlices) {
    constexpr Word kPointer = 1, kInArray = 2, kDuring = 2, kStreams = 1;
    // kind, address, length of rows, height of layers and a hint of both sides, width, height, depth, order
    std::array<Words<14>, 2> copies{
        Words<14>{kPointer, kHost, 256, 4, 0, kInArray, 9, 0, 0, 0, 100, 2, 3, kStreams},
        Words<14>{kPointer, kOther, 0, 0, 0, kPointer, kDevice, 0, 0, 0, 100, 1, 1, kDuring}};
    for (const std::uint32_t number : {798, 799}) {
        told(number, std::size_t{2}, &copies, 0ULL, stream_);
        expect_use(kHost, 2 * 1024 + 256 + 100, false, Kind::copy);
    }
    for (const std::uint32_t number : {778, 779}) {
        std::size_t failed = 0;
        told(number, std::size_t{2}, &copies, &failed, 0ULL, stream_);
        expect_use(kHost, 2 * 1024 + 256 + 100, false, Kind::copy);
    }
}

template <typename Value>
void memsets(auto told, auto expect, std::initializer_list<int> lines, std::initializer_list<int> rectangles) {
    for (const int number : lines) {
        told(number, kHost, Value{1}, std::size_t{10});
        expect(10 * sizeof(Value));
    }
    for (const int number : rectangles) {
        told(number, kHost, std::size_t{512}, Value{1}, std::size_t{10}, std::size_t{3});
        expect(2 * 512 + 10 * sizeof(Value));
    }
}

TEST_F(CallsTest, Memsets) {
    const auto tell_it = [&](int number, auto... arguments) {
        told(static_cast<std::uint32_t>(number), arguments..., stream_);
    };
    const auto expect = [&](std::size_t bytes) { expect_use(kHost, bytes, true, Kind::memset); };
    memsets<std::uint8_t>(tell_it, expect, {216, 428}, {222, 431});
    memsets<std::uint16_t>(tell_it, expect, {218, 429}, {224, 432});
    memsets<std::uint32_t>(tell_it, expect, {220, 430}, {226, 433});
}

TEST_F(CallsTest, KernelsByEachWayToGiveParameters) {
    FakeDriver::parameter_bytes = {12, 24};  // the second begins in the middle of a word, and so does what it holds
    std::array<char, 12> first{};
    std::array<char, 24> second{};
    const std::uintptr_t pinned = kHost + 100;
    std::memcpy(second.data() + 4, &pinned, sizeof pinned);
    std::array<void*, 2> params{first.data(), second.data()};
    void** const none = nullptr;
    const auto expect = [&] { expect_use(pinned, kBytes - 100, true, Kind::kernel); };
    for (const std::uint32_t number : {307, 442}) {
        told(number, function_, 1U, 1U, 1U, 1U, 1U, 1U, 0U, stream_, params.data(), none);
        expect();
    }
    for (const std::uint32_t number : {477, 478}) {
        told(number, function_, 1U, 1U, 1U, 1U, 1U, 1U, 0U, stream_, params.data());
        expect();
    }
    const Words<7> config{0, 0, 0, 0, reinterpret_cast<Word>(stream_), 0, 0};
    for (const std::uint32_t number : {652, 653}) {
        told(number, &config, function_, params.data(), none);
        expect();
    }
    std::array<std::uintptr_t, 2> buffer{17, pinned};
    std::size_t bytes = sizeof buffer;
    std::array<void*, 5> extra{reinterpret_cast<void*>(1), buffer.data(), reinterpret_cast<void*>(2), &bytes, nullptr};
    told(307, function_, 1U, 1U, 1U, 1U, 1U, 1U, 0U, stream_, none, extra.data());
    expect();
}

TEST_F(CallsTest, AKernelsUseIsOnlyPossible) {
    FakeDriver::parameter_bytes = {8, 0};
    std::uintptr_t pinned = kHost;
    std::array<void*, 1> params{&pinned};
    void** const none = nullptr;
    told(307, function_, 1U, 1U, 1U, 1U, 1U, 1U, 0U, stream_, params.data(), none);
    EXPECT_FALSE(watch_->guard.touch(kHost, 1, Access::write).use.certain);
    forget();
}

TEST_F(CallsTest, MemoryIsPinnedAndGoesBack) {
    for (const std::uint32_t number : {39, 271, 294}) {
        void* made = reinterpret_cast<void*>(kOther + kBytes);
        told(number, &made, kBytes, 0U);
        told(306, kDevice, kOther + kBytes, std::size_t{10}, stream_);
        EXPECT_FALSE(watch_->guard.idle());
        tell(cupti::kEnter, 0, 38, kOther + kBytes);
        expect_no_use();
    }
    for (const std::uint32_t number : {301, 379}) {
        told(number, kOther + kBytes, kBytes, 8U);  // to be read alone
        told(306, kDevice, kOther + kBytes, std::size_t{10}, stream_);
        expect_no_use();
        told(number, kOther + kBytes, kBytes, 0U);
        told(306, kDevice, kOther + kBytes, std::size_t{10}, stream_);
        EXPECT_FALSE(watch_->guard.idle());
        tell(cupti::kEnter, 0, 302, kOther + kBytes);
        expect_no_use();
    }
}

// Mapped to an address of its own, and open to the host afterwards.
TEST_F(CallsTest, HostMemoryThatIsMapped) {
    constexpr std::uintptr_t there = kOther + kBytes;
    constexpr std::size_t none = 0;
    // Kind and number of a place, and what it may do.
    const std::array<int, 6> device{1, 0, 3, 1, 1, 3}, host{1, 0, 3, 2, 0, 3}, host_reads{2, 0, 1, 0, 0, 0};
    const auto copy = [&] { told(306, kDevice, there + 8, std::size_t{10}, stream_); };
    const auto access = [&](const auto& to, std::size_t count) { told(553, there, 2 * kBytes, &to, count); };
    told(551, there, kBytes, none, FakeDriver::kAllocationOfHost, 0ULL);
    told(551, there + kBytes, kBytes, none, FakeDriver::kAllocationOfDevice, 0ULL);
    access(device, std::size_t{2});
    copy();
    expect_no_use();
    access(host, std::size_t{2});
    copy();
    expect_use(there + 8, 10, false, Kind::copy);
    told(306, kDevice, there + kBytes, std::size_t{10}, stream_);
    expect_no_use();
    copy();
    access(host_reads, 1);
    expect_no_use();
    copy();
    expect_no_use();
    access(host, std::size_t{2});
    copy();
    EXPECT_FALSE(watch_->guard.idle());
    tell(cupti::kEnter, 0, 552, there, 2 * kBytes);
    expect_no_use();
    EXPECT_EQ(races(), 1U);
    copy();
    expect_no_use();
}

TEST_F(CallsTest, HostMemoryOfPools) {
    constexpr std::uintptr_t there = kOther + kBytes;
    std::uintptr_t made = there + 64;
    const std::array<int, 4> of_host{1, 0, 2, 0}, of_device{1, 0, 1, 0};
    std::array<char, 3> are_pools{};
    const auto pool = [&](std::size_t at) { return static_cast<cuda::Handle>(&are_pools[at]); };
    std::array<cuda::Handle, 3> pools{pool(0), pool(1), pool(2)};
    const std::array<int, 2> numa{3, 0};
    told(607, pools.data(), &of_host);
    told(607, &pools[1], &of_device);
    const auto copy = [&] { told(306, kDevice, made, std::size_t{10}, stream_); };
    const auto alloc = [&](std::uint32_t number, std::size_t from) {
        told(number, &made, std::size_t{100}, pools[from], stream_);
        copy();
    };
    for (const std::uint32_t number : {801, 802}) {
        told(608, pools[2]);
        alloc(611, 2);
        expect_no_use();
        told(number, &pools[2], &numa, 1);
        for (const std::uint32_t taken : {611, 612}) {
            for (const std::size_t from : {0, 2}) {
                alloc(taken, from);
                expect_use(made, 10, false, Kind::copy);
                tell(cupti::kEnter, 0, 600, made, stream_);
            }
        }
    }
    for (const std::uint32_t number : {600, 601}) {
        alloc(611, 0);
        tell(cupti::kEnter, 0, number, made, stream_);  // what is freed in order is no race
        expect_no_use();
        EXPECT_EQ(races(), 0U);
        copy();
        expect_no_use();
    }
    alloc(611, 1);
    expect_no_use();
    told(611, &made, std::size_t{100}, pools[0], reinterpret_cast<cuda::Handle>(99));  // a node of a graph
    copy();
    expect_no_use();
    alloc(611, 0);
    tell(cupti::kEnter, 0, 245, made);
    expect_no_use();
    EXPECT_EQ(races(), 1U);
}

TEST_F(CallsTest, CopiesBetweenPeersHaveSeldomASideOfTheHosts) {
    for (const std::uint32_t number : {319, 426}) {
        told(number, kDevice, &context_, kDevice + kBytes, &context_, std::size_t{300}, stream_);
        expect_no_use();
        told(number, kDevice, &context_, kHost + 100, &context_, std::size_t{300}, stream_);
        expect_use(kHost + 100, 300, false, Kind::copy);
        told(number, kHost + 100, &context_, kDevice, &context_, std::size_t{300}, stream_);
        expect_use(kHost + 100, 300, true, Kind::copy);
    }
    for (const std::uint32_t number : {321, 427}) {
        const auto context = reinterpret_cast<Word>(&context_);
        const Words<25> between{0, 0, 0,         0, kIsDevice, 0, kDevice, 0,   context, 256, 8, 0, 0,
                                0, 0, kIsDevice, 0, kDevice,   0, context, 256, 8,       100, 2, 3};
        told(number, &between, stream_);
        expect_no_use();
        const Words<25> from_host{0, 0, 0,         0, kIsHost, kHost, 0,       0,   context, 256, 8, 0, 0,
                                  0, 0, kIsDevice, 0, kDevice, 0,     context, 256, 8,       100, 2, 3};
        told(number, &from_host, stream_);
        expect_use(kHost, 2 * 8 * 256 + 256 + 100, false, Kind::copy);
    }
}

TEST_F(CallsTest, LargePagesAreProtectedAsAWhole) {
    constexpr std::uintptr_t page = kLargePageSizes.front(), begin = std::uintptr_t{1} << 34U;
    pages_.large_pages = {begin, begin + 4 * page};
    told(301, begin + page, 2 * page, 0U);
    told(301, begin + kPage, 8 * kPage, 0U);  // a part of a large page: what is there is compared
    told(306, kDevice, begin + page + 100, std::size_t{10}, stream_);
    EXPECT_EQ(pages_.of(begin + 2 * page - 1), Protection::read_only);
    EXPECT_EQ(pages_.of(begin + 2 * page), Protection::open);
    Verdict beside = watch_->guard.touch(begin + 2 * page - 8, 1, Access::write);
    EXPECT_EQ(beside.answer, Answer::step);
    EXPECT_EQ(beside.opening.pages, (Span{begin + page, begin + 2 * page}));
    EXPECT_EQ(pages_.of(begin + page), Protection::open);
    watch_->guard.close(beside.opening);
    EXPECT_EQ(pages_.of(begin + page), Protection::read_only);
    expect_use(begin + page + 100, 10, false, Kind::copy);
    EXPECT_TRUE(pages_.all_open());
    const std::uint64_t dropped = watch_->counts.dropped;
    told(306, kDevice, begin + 2 * kPage, std::size_t{10}, stream_);
    EXPECT_TRUE(pages_.all_open());
    expect_use(begin + 2 * kPage, 10, false, Kind::copy);
    EXPECT_EQ(watch_->counts.dropped, dropped);
}

TEST_F(CallsTest, WhatFailsOrIsCapturedEnqueuesNothing) {
    tell(cupti::kExit, 700, 306, kDevice, kHost, std::size_t{10}, stream_);
    tell(cupti::kEnter, 0, 306, kDevice, kHost, std::size_t{10}, stream_);
    told(306, kDevice, kHost, std::size_t{10}, reinterpret_cast<cuda::Handle>(99));
    EXPECT_TRUE(FakeDriver::written.empty());
    expect_no_use();
}

TEST_F(CallsTest, EachThreadHasItsOwnDefaultStream) {
    const cuda::Handle none = nullptr;
    const auto stream_of = [&](std::uint32_t number, cuda::Handle given) {
        told(number, kDevice, kHost, std::size_t{10}, given);
        const std::uint64_t stream = watch_->guard.touch(kHost, 1, Access::write).use.stream;
        forget();
        return stream;
    };
    EXPECT_EQ(stream_of(306, none), 0U);
    EXPECT_EQ(stream_of(306, reinterpret_cast<cuda::Handle>(1)), 0U);
    EXPECT_EQ(stream_of(306, reinterpret_cast<cuda::Handle>(2)), 2U);
    EXPECT_EQ(stream_of(418, none), 2U);
    EXPECT_EQ(stream_of(418, stream_), reinterpret_cast<std::uint64_t>(stream_));
}

TEST_F(CallsTest, ThreadsThatEndGiveTheWordsOfTheirStreamsBack) {
    const std::uint64_t before = watch_->counts.unwatched_streams;
    for (int threads = 0; threads < 3000; ++threads) {
        std::thread([&] {
            told(418, kDevice, kHost, std::size_t{10}, cuda::Handle{});
            expect_use(kHost, 10, false, Kind::copy);  // it is over then
        }).join();
    }
    EXPECT_EQ(watch_->counts.unwatched_streams, before);
}

TEST_F(CallsTest, WaitingForTheDeviceOpensWhatHasEnded) {
    const std::array<std::uint32_t, 5> numbers{126, 440, 121, 17, 800};
    for (const std::uint32_t number : numbers) {
        told(306, kDevice, kHost, std::size_t{10}, stream_);
        told(number, stream_);
        EXPECT_FALSE(watch_->guard.idle());
        *FakeDriver::word = FakeDriver::written.back().second;
        told(number, stream_);
        expect_no_use();
    }
}

TEST_F(CallsTest, AStreamsWordIsFreeWhenItsLastNumberHasCome) {
    std::array<char, 3> streams{};
    const auto word_of = [&](char& stream) {
        told(306, kDevice, kHost, std::size_t{10}, static_cast<cuda::Handle>(&stream));
        return FakeDriver::word;
    };
    volatile std::uint32_t* const first = word_of(streams[0]);
    tell(cupti::kEnter, 0, 326, static_cast<cuda::Handle>(streams.data()));
    EXPECT_NE(word_of(streams[1]), first);
    *first = 1;
    EXPECT_EQ(word_of(streams[2]), first);
    EXPECT_EQ(FakeDriver::written.back().second, 2U);
}

TEST_F(CallsTest, WhatWasUnloadedIsAskedForAgain) {
    std::array<std::uintptr_t, 2> given{17, kHost};
    std::array<void*, 1> params{&given};
    void** const none = nullptr;
    const auto launch = [&] { told(307, function_, 1U, 1U, 1U, 1U, 1U, 1U, 0U, stream_, params.data(), none); };
    for (const std::uint32_t number : {22, 680}) {
        FakeDriver::parameter_bytes = {8, 0};
        tell(cupti::kEnter, 0, number, stream_);
        launch();
        FakeDriver::parameter_bytes = {16, 0};
        launch();
        expect_no_use();
        tell(cupti::kEnter, 0, number, stream_);
        launch();
        expect_use(kHost, kBytes, true, Kind::kernel);
    }
}

TEST_F(CallsTest, AContextTakesItsUsesAlong) {
    for (const std::uint32_t number : {322, 387, 544, 389, 545}) {
        told(306, kDevice, kHost, std::size_t{10}, stream_);
        EXPECT_FALSE(watch_->guard.idle());
        tell(cupti::kEnter, 0, number, &context_);
        expect_no_use();
        told(301, kHost, kBytes, 0U);
        begins(17);  // the next context makes room for its streams' words
    }
}

}  // namespace
}  // namespace hostrace
