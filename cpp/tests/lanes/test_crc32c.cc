#include "lanes/crc32c.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string_view>

namespace kvfix {
namespace {

std::vector<std::uint8_t> counting(std::size_t bytes) {
    std::vector<std::uint8_t> out(bytes);
    std::iota(out.begin(), out.end(), std::uint8_t{0});
    return out;
}

std::span<const std::uint8_t> bytes_of(std::string_view text) {
    return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

TEST(Crc32c, IsThatOfTheStandards) {
    EXPECT_EQ(crc32c_by_table(bytes_of("123456789")), 0xe3069283U);
    EXPECT_EQ(crc32c_by_table({}), 0U);
    const std::vector<std::uint8_t> zeros(32);  // RFC 3720, B.4
    EXPECT_EQ(crc32c_by_table(zeros), 0x8a9136aaU);
    EXPECT_EQ(crc32c_by_table(counting(32)), 0x46dd794eU);
}

TEST(Crc32c, OfRangesIsThatOfEachAlone) {
    const std::vector<std::uint8_t> bytes = counting(4000);
    const std::vector<std::uint64_t> starts{0, 3, 500, 17, 17, 901, 8};
    for (const std::size_t length : {0U, 1U, 7U, 8U, 63U, 99U, 1024U, 1025U, 1095U, 3099U}) {
        for (std::size_t count = 0; count <= starts.size(); ++count) {
            const auto found = crc32c_each(bytes, std::span(starts).first(count), length);
            ASSERT_EQ(found.size(), count);
            for (std::size_t i = 0; i < count; ++i) {
                EXPECT_EQ(found[i], crc32c_by_table(std::span(bytes).subspan(starts[i], length))) << starts[i];
            }
        }
    }
}

TEST(Crc32c, ShowsEveryChangedBit) {
    std::vector<std::uint8_t> bytes = counting(24);
    const std::uint32_t before = crc32c_by_table(bytes);
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
        bytes[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
        EXPECT_NE(crc32c_by_table(bytes), before) << bit;
        bytes[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
    }
}

TEST(Crc32c, RefusesWhatLiesOutside) {
    const std::vector<std::uint8_t> bytes(16);
    const std::vector<std::uint64_t> outside{9};
    EXPECT_THROW(crc32c_each(bytes, outside, 8), std::invalid_argument);
    const std::vector<std::uint64_t> far{~std::uint64_t{0}};
    EXPECT_THROW(crc32c_each(bytes, far, 8), std::invalid_argument);
}

}  // namespace
}  // namespace kvfix
