// What changed while a copy had it: bytes that no protection covers are compared when the program has waited.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "fake_pages.h"
#include "hostrace/digests.h"

namespace hostrace {
namespace {

using Found = Digests::Found;
constexpr std::size_t kSize = 3 * kPage;

class DigestsTest : public testing::Test {
  protected:
    DigestsTest() : memory_(static_cast<char*>(mmap(nullptr, kSize, PROT_READ | PROT_WRITE, kPrivate, -1, 0))) {}
    DigestsTest(const DigestsTest&) = delete;
    DigestsTest& operator=(const DigestsTest&) = delete;
    ~DigestsTest() override { munmap(memory_, kSize); }

    Span bytes(std::size_t begin = 0, std::size_t count = kSize) const {
        const auto at = reinterpret_cast<std::uintptr_t>(memory_) + begin;
        return {at, at + count};
    }
    Use use(Span of) {
        Use made;
        made.shape.begin = of.begin;
        made.shape.width = of.end - of.begin;
        made.ends = {&word_, 1};
        made.seen = &seen_;
        made.order = 1;
        made.context = &word_;
        return made;
    }
    void add(Span of) { EXPECT_TRUE(digests_.add(use(of), of)); }
    void end() { word_ = 1; }
    void observe() { seen_.by_host = 1; }
    std::vector<Found> compared() {
        std::vector<Found> all;
        digests_.compare([&](const Use&, Span, Found found) { all.push_back(found); });
        return all;
    }

    static constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
    Digests digests_;
    Seen seen_;
    std::uint32_t word_ = 0;
    char* memory_;
};

TEST_F(DigestsTest, EachByteCounts) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{8}, std::size_t{4097}, kSize - 1}) {
        add(bytes());
        memory_[at] = static_cast<char>(memory_[at] + 1);
        end();
        observe();
        EXPECT_EQ(compared(), std::vector{Found::changed}) << at;
    }
    add(bytes(5, 3));
    memory_[4] = memory_[8] = 99;
    EXPECT_EQ(compared(), std::vector{Found::as_it_was});
}

TEST_F(DigestsTest, BytesThatChangePlacesHaveChanged) {
    memory_[0] = 1;
    add(bytes());
    end();
    observe();
    std::swap(memory_[0], memory_[16]);
    EXPECT_EQ(compared(), std::vector{Found::changed});
}

TEST_F(DigestsTest, NothingIsComparedBeforeTheProgramHasObservedTheEnd) {
    add(bytes());
    EXPECT_TRUE(compared().empty());
    end();
    EXPECT_TRUE(compared().empty());
    observe();
    EXPECT_EQ(compared(), std::vector{Found::as_it_was});
    EXPECT_TRUE(digests_.idle());
}

TEST_F(DigestsTest, MemoryThatWentIsGoneAndMemoryThatIsProtectedIsRead) {
    add(bytes());
    add(bytes(0, kPage));
    end();
    observe();
    mprotect(memory_, kPage, PROT_NONE);
    EXPECT_EQ(compared(), (std::vector{Found::as_it_was, Found::as_it_was}));
    mprotect(memory_, kPage, PROT_READ | PROT_WRITE);
    add(bytes());
    munmap(memory_ + kPage, kPage);
    EXPECT_EQ(compared(), std::vector{Found::gone});
    EXPECT_FALSE(digests_.add(use(bytes()), bytes()));
}

TEST_F(DigestsTest, WhatTheDeviceWritesIsNoTouch) {
    add(bytes());
    digests_.written(use(bytes(100, 1)));
    EXPECT_TRUE(digests_.idle());
    EXPECT_FALSE(digests_.add(use(bytes()), bytes()));
    add(bytes(101, 9));
    end();
    add(bytes());
}

TEST_F(DigestsTest, CodeInTheStreamMayWriteWhatItComesBehind) {
    add(bytes());
    digests_.let_go([&] { observe(); });
    EXPECT_TRUE(digests_.idle());
}

// As a handler says that interrupted us at our books: it does not wait for us, and nothing doubtful is compared.
TEST_F(DigestsTest, MemoryIsForgottenInTheMiddleOfAnotherCall) {
    add(bytes());
    digests_.let_go([&] { digests_.forget(bytes()); });
    memory_[0] = static_cast<char>(memory_[0] + 1);
    end();
    observe();
    EXPECT_EQ(compared(), std::vector<Found>{});
    EXPECT_TRUE(digests_.idle());
}

TEST_F(DigestsTest, MemoryThatGoesBackAndContextsAreForgotten) {
    add(bytes(0, kPage));
    add(bytes(kPage, kPage));
    digests_.forget(bytes(10, 1));
    digests_.forget_context(&seen_);
    EXPECT_FALSE(digests_.idle());
    digests_.forget_context(&word_);
    EXPECT_TRUE(digests_.idle());
}

}  // namespace
}  // namespace hostrace
