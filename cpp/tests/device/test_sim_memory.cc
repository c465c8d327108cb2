// Memory: what the device can address, and how it refuses the rest.
#include <unistd.h>

#include "sim_fixture.h"

namespace kvfix {
namespace {

using SimMemoryTest = SimDeviceTest;

std::string hex_of(const void* memory) { return hex(address_of(memory)); }

TEST_F(SimMemoryTest, PinnedMemoryIsZeroedAndOnPagesOfItsOwn) {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const Words words = pinned(1000);
    EXPECT_EQ(address_of(words.data()) % page, 0U);
    EXPECT_EQ(values(words), all(1000, 0));
    EXPECT_EQ(device.device_address(words.data()), address_of(words.data()));
    EXPECT_EQ(device.device_address(&words[999]), address_of(&words[999]));
    device.unmap_pinned(words.data(), words.size_bytes());
}

TEST_F(SimMemoryTest, DeviceMemoryShowsWhatWasNeverWritten) {
    const Words words = device_words(3);
    EXPECT_EQ(address_of(words.data()) % 256, 0U);
    EXPECT_EQ(values(words), all(3, static_cast<std::int32_t>(0xcdcdcdcd)));
    EXPECT_CONTAINS(error_of([&] { device.device_address(words.data()); }), "not in pinned memory");
    device.release(address_of(words.data()));
}

TEST_F(SimMemoryTest, MemoryOfOthersIsTheirsAgainAfterwards) {
    std::vector<std::int32_t> own(4, 9);
    const Words words{own};
    const Words target = device_words(4);
    EXPECT_CONTAINS(error_of([&] { copy(target, words, stream); }), "neither device memory nor mapped nor registered");
    device.register_host(own.data(), words.size_bytes());
    EXPECT_EQ(device.device_address(own.data()), address_of(own.data()));
    copy(target, words, stream);
    device.synchronize(stream);
    EXPECT_EQ(values(target), all(4, 9));
    device.unregister_host(own.data());
    EXPECT_CONTAINS(error_of([&] { copy(target, words, stream); }), hex_of(own.data()));
}

TEST_F(SimMemoryTest, EveryKindOfCopyIsJudgedAtTheCall) {
    const Words good = pinned(4);
    std::int32_t stray[4] = {};
    const Words bad{stray};
    const std::string at = "16 bytes at " + hex_of(stray);
    EXPECT_CONTAINS(error_of([&] { copy(good, bad, stream); }), "copy source: " + at);
    EXPECT_CONTAINS(error_of([&] { copy(bad, good, stream); }), "copy destination: " + at);
    const CopySpan spans[] = {span_of(good, good), span_of(good, bad)};
    for (const SourceOrder order : {SourceOrder::stream, SourceOrder::any}) {
        EXPECT_CONTAINS(error_of([&] { device.copy_batch(spans, order, stream); }), at);
    }
    RowCopy rows{address_of(good.data()), 8, address_of(stray), 8, 8, 2};
    EXPECT_CONTAINS(error_of([&] { device.copy_rows(rows, stream); }), "copy_rows source: " + at);
    std::swap(rows.dst, rows.src);
    EXPECT_CONTAINS(error_of([&] { device.copy_rows(rows, stream); }), "copy_rows destination: " + at);
    device.synchronize(stream);  // refused calls leave the stream whole
}

TEST_F(SimMemoryTest, ARangeEndsWhereItWasAskedToEnd) {
    const Words words = pinned(4);
    const Words target = device_words(8);
    const Words longer{words.data(), 5};
    EXPECT_CONTAINS(error_of([&] { copy(target, longer, stream); }), "reach beyond the end of mapped memory");
    const Words behind{words.data() + 4, 1};
    EXPECT_CONTAINS(error_of([&] { copy(target, behind, stream); }), hex_of(behind.data()));
    const CopySpan wrapping{address_of(target.data()), address_of(words.data()), SIZE_MAX};
    EXPECT_CONTAINS(error_of([&] { device.copy(wrapping, stream); }), std::to_string(SIZE_MAX));
}

TEST_F(SimMemoryTest, PitchesThatMakeNoSenseAreRefused) {
    const Words words = pinned(16);
    const std::uintptr_t at = address_of(words.data());
    EXPECT_CONTAINS(error_of([&] { device.copy_rows({at, 8, at, 4, 8, 2}, stream); }), "do not fit a pitch of 4");
    EXPECT_CONTAINS(error_of([&] { device.copy_rows({at, 8, at, SIZE_MAX, 8, 3}, stream); }), "more bytes");
    EXPECT_CONTAINS(error_of([&] { device.copy_rows({at, 8, at, SIZE_MAX - 1, 8, 2}, stream); }), "last address");
    device.copy_rows({at, 0, at, 0, 8, 1}, stream);  // one row has no pitch
    device.copy_rows({0, 8, 0, 8, 8, 0}, stream);    // and none has no address
    device.synchronize(stream);
}

TEST_F(SimMemoryTest, GivingBackIsExact) {
    const Words words = pinned(4);
    EXPECT_CONTAINS(error_of([&] { device.unmap_pinned(words.data(), 20); }), "has 16 bytes, to be given back are 20");
    EXPECT_CONTAINS(error_of([&] { device.unmap_pinned(&words[1], 12); }), "no mapped memory begins at");
    EXPECT_CONTAINS(error_of([&] { device.release(address_of(words.data())); }), "no device memory begins at");
    EXPECT_CONTAINS(error_of([&] { device.unregister_host(words.data()); }), "no registered memory begins at");
    device.unmap_pinned(words.data(), 16);
    EXPECT_CONTAINS(error_of([&] { device.unmap_pinned(words.data(), 16); }), "already given back");
}

TEST_F(SimMemoryTest, RangesDoNotOverlap) {
    std::vector<std::int32_t> own(8);
    device.register_host(&own[2], 16);
    for (const std::size_t first : {0U, 2U, 3U, 5U}) {
        EXPECT_CONTAINS(error_of([&] { device.register_host(&own[first], 12); }), "overlaps registered memory");
    }
    EXPECT_CONTAINS(error_of([&] { device.register_host(own.data(), 32); }), "registered twice");
    device.register_host(own.data(), 8);
    device.register_host(&own[6], 8);
}

TEST_F(SimMemoryTest, EmptyAndImpossibleRangesAreRefused) {
    EXPECT_CONTAINS(error_of([&] { device.allocate(0); }), "0 bytes");
    EXPECT_CONTAINS(error_of([&] { device.map_pinned(0); }), "0 bytes");
    EXPECT_CONTAINS(error_of([&] { device.register_host(&device, 0); }), "0 bytes");
    EXPECT_CONTAINS(error_of([&] { device.register_host(nullptr, 8); }), "not a range of addresses");
    EXPECT_CONTAINS(error_of([&] { device.register_host(&device, SIZE_MAX); }), "not a range of addresses");
    EXPECT_CONTAINS(error_of([&] { device.map_pinned(std::size_t{1} << 60); }), "mmap");
}

}  // namespace
}  // namespace kvfix
