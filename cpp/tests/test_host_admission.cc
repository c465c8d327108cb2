// Which evicted blocks may push others out of a full host tier.
#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>

#include "core/newcomers.h"
#include "tests/support.h"

namespace kvfix {
namespace {

using testing::config;
using testing::joined;
using testing::kept_at;
using testing::Manager;
using testing::request;
using testing::RequestOptions;
using testing::Tokens;
using testing::tokens;

const Tokens kX = tokens(4, 1000);
const Tokens kY = tokens(4, 2000);
const Tokens kZ = tokens(4, 3000);

BlockManagerConfig adaptive(std::uint32_t blocks_primary, std::uint32_t blocks_host) {
    BlockManagerConfig out = config(blocks_primary, blocks_host);
    out.host_admission = HostAdmission::adaptive;
    return out;
}

bool cached(Manager& manager, const Tokens& prompt) { return manager.reusable(joined(prompt, {1})) == prompt.size(); }

// Caches a prompt, and has the next request push it out of primary.
void send_out(Manager& manager, RequestId id, const Tokens& prompt, RequestOptions options = {}) {
    manager.cache(id, prompt, std::move(options));
    manager.flush_primary(id + 1);
}

// Another request finds the prompt.
void ask_again(Manager& manager, RequestId id, const Tokens& prompt) {
    manager.add_sequence(request(id, joined(prompt, {1})));
    manager.run_transfers();
    manager.forget(id);
}

std::uint64_t declined(const Manager& manager) { return manager.get_kv_cache_stats().current.blocks_declined; }

// In a tier of one slot, one prompt comes back after each newcomer that pushed it out, until newcomers may not enter.
// That prompt is in the tier then.
void refuse_newcomers(Manager& manager, const Tokens& known) {
    RequestId id = 1000;
    for (TokenId newcomer = 0; declined(manager) == 0; ++newcomer, id += 4) {
        ASSERT_LT(newcomer, 1000);
        send_out(manager, id, known);
        send_out(manager, id + 2, tokens(4, 100'000 + 10 * newcomer));
    }
    ASSERT_TRUE(cached(manager, known));
}

TEST(HostAdmission, TheShareOfNewcomersFollowsWhatComesBack) {
    Newcomers newcomers(64);  // of which it remembers four of each kind
    EXPECT_TRUE(newcomers.may_enter() && newcomers.leave_enough(32) && !newcomers.leave_enough(33)) << "a half";
    newcomers.note_gone(1, false);
    newcomers.note_gone(2, false);
    newcomers.note_gone(3, true);
    newcomers.note_missed(4);
    EXPECT_EQ(newcomers.share(), 500'000U);
    newcomers.note_missed(3);
    EXPECT_EQ(newcomers.share(), 468'750U) << "a slot, times two newcomers for one other";
    newcomers.note_missed(1);
    EXPECT_EQ(newcomers.share(), 476'562U);
    for (int i = 0; i < 1000; ++i) {
        newcomers.note_missed(3);
    }
    EXPECT_TRUE(newcomers.share() == 0 && !newcomers.may_enter() && newcomers.leave_enough(64));
    for (int i = 0; i < 11'000; ++i) {
        newcomers.note_missed(2);
    }
    EXPECT_TRUE(newcomers.share() == 1'000'000 && newcomers.leave_enough(0) && !newcomers.leave_enough(1));
}

TEST(HostAdmission, ALargeTierMovesItsShareByMoreThanASlot) {
    Newcomers newcomers(100'000);
    newcomers.note_gone(1, true);
    newcomers.note_missed(1);
    EXPECT_EQ(newcomers.share(), 499'800U);
}

TEST(HostAdmission, NewcomersThatPushOutWhatComesBackAreDeclined) {
    Manager manager(adaptive(2, 1));
    refuse_newcomers(manager, kX);
    EXPECT_EQ(declined(manager), 1U);
    send_out(manager, 1, kY);
    EXPECT_TRUE(cached(manager, kX) && !cached(manager, kY));
    EXPECT_EQ(declined(manager), 2U);
    send_out(manager, 3, kY);
    EXPECT_TRUE(!cached(manager, kX) && cached(manager, kY)) << "it was asked for twice";
}

TEST(HostAdmission, ANewcomerPushesOutANewcomerAndNothingElse) {
    Manager manager(adaptive(2, 2));
    manager.cache(1, kX);
    ask_again(manager, 2, kX);
    manager.flush_primary(3);
    send_out(manager, 4, kY);
    EXPECT_TRUE(cached(manager, kX) && cached(manager, kY)) << "free slots are anybody's";
    send_out(manager, 6, kZ);
    EXPECT_TRUE(cached(manager, kX) && !cached(manager, kY) && cached(manager, kZ)) << "kX has been there the longest";
    EXPECT_EQ(declined(manager), 0U);
}

TEST(HostAdmission, ALongPromptTakesNoMoreThanTheShareOfNewcomers) {
    Manager manager(adaptive(6, 3));
    manager.cache(1, kX);
    ask_again(manager, 2, kX);
    manager.flush_primary(3);
    send_out(manager, 4, tokens(20, 5000));
    EXPECT_TRUE(cached(manager, kX)) << "its first newcomers were still on their way when the others came";
    EXPECT_EQ(declined(manager), 3U);
}

TEST(HostAdmission, WhatWasAskedForTwicePushesOutANewcomer) {
    Manager manager(adaptive(2, 1));
    send_out(manager, 1, kX);
    manager.cache(5, kZ);
    ask_again(manager, 6, kZ);
    manager.flush_primary(7);
    EXPECT_TRUE(!cached(manager, kX) && cached(manager, kZ));
}

TEST(HostAdmission, AllTakesWhatWasAskedForOnce) {
    Manager manager(config(2, 1));
    send_out(manager, 1, kX);
    send_out(manager, 3, kY);
    EXPECT_TRUE(!cached(manager, kX) && cached(manager, kY));
    EXPECT_EQ(declined(manager), 0U);
}

// Newcomers push the prompt out of a tier of eight slots, and after `others` more it comes back. Whether it then outlasts
// eight newcomers, as only what is known does.
bool is_known_after(std::uint32_t others) {
    constexpr std::uint32_t kSlots = 8;
    Manager manager(adaptive(2, kSlots));
    send_out(manager, 1, kX);
    TokenId newcomer = 100'000;
    RequestId id = 3;
    const auto send_newcomers = [&](std::uint32_t count) {
        for (; count != 0; --count, id += 2, newcomer += 10) {
            send_out(manager, id, tokens(4, newcomer));
        }
    };
    send_newcomers(kSlots + others);
    EXPECT_FALSE(cached(manager, kX));
    send_out(manager, id, kX);
    id += 2;
    send_newcomers(kSlots);
    return cached(manager, kX);
}

TEST(HostAdmission, ABlockThatWasDroppedIsKnownWhenItComesBack) { EXPECT_TRUE(is_known_after(0)); }

TEST(HostAdmission, WhatWasDroppedLongAgoIsForgotten) {
    EXPECT_FALSE(is_known_after(2 * 10)) << "twice as many as there are slots";
}

TEST(HostAdmission, AHigherPriorityPushesOutALowerOne) {
    Manager manager(adaptive(2, 1));
    refuse_newcomers(manager, kX);
    send_out(manager, 1, kY, kept_at(35));
    EXPECT_TRUE(cached(manager, kX) && !cached(manager, kY));
    send_out(manager, 3, kZ, kept_at(36));
    EXPECT_TRUE(!cached(manager, kX) && cached(manager, kZ));
}

TEST(HostAdmission, ACopyOfWhatPrimaryHasMakesRoomForAnybody) {
    Manager manager(adaptive(3, 1));
    send_out(manager, 1, kX);
    manager.add_sequence(request(3, joined(kX, {1})));  // brings it back, and keeps it
    manager.run_transfers();
    send_out(manager, 4, kY);
    EXPECT_TRUE(cached(manager, kX) && cached(manager, kY));
    EXPECT_EQ(declined(manager), 0U);
}

TEST(HostAdmission, AnIncompleteBlockIsNeverKnown) {
    Manager manager(adaptive(2, 1));
    refuse_newcomers(manager, kX);
    const Tokens part(kY.begin(), kY.end() - 1);
    for (const RequestId id : {3, 5, 7}) {
        send_out(manager, id, part);
        EXPECT_TRUE(cached(manager, kX) && !cached(manager, part));
    }
}

TEST(HostAdmission, WithoutAHostTierThereIsNothingToChoose) {
    EXPECT_THROW(Manager{adaptive(2, 0)}, std::invalid_argument);
}

}  // namespace
}  // namespace kvfix
