// Pages that are made up, and uses whose end the test decides.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "hostrace/guard.h"

namespace hostrace {

constexpr std::uintptr_t kPage = 4096;
constexpr std::uintptr_t kBase = 0x100000;

class FakePages final : public Pages {
  public:
    bool protect(std::uintptr_t begin, std::size_t bytes, Protection protection) override {
        const std::lock_guard held(mutex_);
        const std::uintptr_t large = kLargePageSizes.front();
        const bool in_part = large_pages.meets({begin, begin + bytes}) && (begin % large != 0 || bytes % large != 0);
        if (refuse || in_part || (begin < hole && hole < begin + bytes)) {
            return false;
        }
        EXPECT_EQ(begin % kPage, 0U);
        EXPECT_EQ(bytes % kPage, 0U);
        ++calls;
        for (std::uintptr_t page = begin; page < begin + bytes; page += kPage) {
            pages_[page] = protection;
        }
        return true;
    }
    std::vector<Span> with_other_rights(Span) override { return {}; }
    Protection of(std::uintptr_t address) {
        const std::lock_guard held(mutex_);
        return pages_[address & ~(kPage - 1)];
    }
    bool all_open() {
        const std::lock_guard held(mutex_);
        for (const auto& [page, protection] : pages_) {
            if (protection != Protection::open) {
                return false;
            }
        }
        return true;
    }
    std::atomic<bool> refuse{false};
    std::atomic<std::uintptr_t> hole{0};  // what reaches over it is refused, as where a part is no longer mapped
    Span large_pages;                     // these change as a whole alone
    std::atomic<int> calls{0};

  private:
    std::mutex mutex_;
    std::map<std::uintptr_t, Protection> pages_;
};

class GuardTest : public testing::Test {
  protected:
    // A stream's word, which the test writes as the device would.
    Use use(std::uintptr_t begin, std::size_t bytes, bool device_writes) {
        Use made;
        made.shape.begin = begin;
        made.shape.width = bytes;
        made.device_writes = device_writes;
        made.ends = {&flag_, ++sequence_};
        return made;
    }
    void finish(std::uint32_t sequence) { __atomic_store_n(&flag_, sequence, __ATOMIC_RELEASE); }
    void finish_all() { finish(sequence_); }

    FakePages pages_;
    Counts counts_{};
    std::unique_ptr<Guard> guard_ = std::make_unique<Guard>(pages_, counts_, false);
    std::uint32_t flag_ = 0;
    std::uint32_t sequence_ = 0;
};

}  // namespace hostrace
