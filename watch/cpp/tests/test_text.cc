// What the library writes is JSON whatever it is about, and stays so where the buffer is too small.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "hostrace/text.h"

namespace hostrace {
namespace {

class TextTest : public testing::Test {
  protected:
    std::string said() const { return {text_.data(), text_.size()}; }

    std::array<char, 1024> room_{};
    Text text_{room_.data(), room_.size()};
};

TEST_F(TextTest, ItemsAreSeparated) {
    (text_ << "{").name("one") << std::uint64_t{0};
    text_.name("two") << "[";
    text_.item() << ~std::uint64_t{0};
    text_.item().quoted("x") << "]}";
    EXPECT_EQ(said(), R"({"one":0,"two":[18446744073709551615,"x"]})");
}

TEST_F(TextTest, WhatWouldEndAStringIsEscaped) {
    text_.quoted(
        "a\"\\\n\x7f"
        "ü");
    EXPECT_EQ(said(), "\"a\\u0022\\u005c\\u000a\\u007fü\"");
}

TEST_F(TextTest, SignsOfEveryScript) {
    for (const std::uint32_t sign : {0x41U, 0xfcU, 0x4e0aU, 0x1f40dU, 0xd834U}) {  // the last is half of one
        text_.sign(sign);
    }
    EXPECT_EQ(said(), "A\\u00fc\\u4e0a\\ud83d\\udc0d\\ufffd");
}

TEST_F(TextTest, WhatDoesNotFitIsLeftOutAsAWhole) {
    const std::string frame(100, 'f');
    text_ << "[";
    int written = 0;
    while (text_.whole([&] { text_.item().quoted(frame.c_str()); })) {
        ++written;
    }
    text_ << "]";
    EXPECT_EQ(written, 4);  // and room for what closes it
    EXPECT_EQ(said().size(), 1 + 4 * 103U);
    EXPECT_EQ(said().back(), ']');
}

TEST_F(TextTest, NothingIsWrittenBehindTheBuffer) {
    Text small(room_.data(), 4);
    small << "abc" << "def" << std::uint64_t{12345};
    EXPECT_EQ(std::string(small.data(), small.size()), "abcd");
    EXPECT_EQ(room_[4], '\0');
}

}  // namespace
}  // namespace hostrace
