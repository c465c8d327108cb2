// Which evicted blocks may push others out of a full host tier.
#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>

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

BlockManagerConfig second_touch(std::uint32_t blocks_primary, std::uint32_t blocks_host) {
    BlockManagerConfig out = config(blocks_primary, blocks_host);
    out.host_admission = HostAdmission::second_touch;
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

TEST(HostAdmission, AFullTierTakesWhatWasAskedForTwice) {
    Manager manager(second_touch(2, 1));
    send_out(manager, 1, kX);
    EXPECT_TRUE(cached(manager, kX)) << "a free slot is anybody's";
    send_out(manager, 3, kY);
    EXPECT_TRUE(cached(manager, kX) && !cached(manager, kY));
    EXPECT_EQ(declined(manager), 1U);
    manager.cache(5, kZ);
    ask_again(manager, 6, kZ);
    manager.flush_primary(7);
    EXPECT_TRUE(!cached(manager, kX) && cached(manager, kZ));
    EXPECT_EQ(declined(manager), 1U);
}

TEST(HostAdmission, AllTakesWhatWasAskedForOnce) {
    Manager manager(config(2, 1));
    send_out(manager, 1, kX);
    send_out(manager, 3, kY);
    EXPECT_TRUE(!cached(manager, kX) && cached(manager, kY));
    EXPECT_EQ(declined(manager), 0U);
}

TEST(HostAdmission, ABlockThatWasDroppedIsKnownWhenItComesBack) {
    Manager manager(second_touch(2, 1));
    send_out(manager, 1, kX);
    for (const RequestId id : {3, 5}) {
        send_out(manager, id, kY);
        EXPECT_EQ(cached(manager, kY), id == 5);
    }
    EXPECT_FALSE(cached(manager, kX));
}

TEST(HostAdmission, WhatWasDroppedLongAgoIsForgotten) {
    Manager manager(second_touch(2, 1));
    send_out(manager, 1, kX);
    send_out(manager, 3, kY);
    RequestId id = 5;
    for (std::uint32_t other = 0; other < 2 * 3; ++other) {  // twice as many as there are blocks
        send_out(manager, id, tokens(4, 10'000 + 1000 * static_cast<TokenId>(other)));
        id += 2;
    }
    send_out(manager, id, kY);
    EXPECT_TRUE(cached(manager, kX) && !cached(manager, kY));
}

TEST(HostAdmission, AHigherPriorityPushesOutALowerOne) {
    Manager manager(second_touch(2, 1));
    send_out(manager, 1, kX, kept_at(50));
    send_out(manager, 3, kY, kept_at(50));
    EXPECT_TRUE(cached(manager, kX) && !cached(manager, kY));
    send_out(manager, 5, kZ, kept_at(51));
    EXPECT_TRUE(!cached(manager, kX) && cached(manager, kZ));
}

TEST(HostAdmission, ACopyOfWhatPrimaryHasMakesRoomForAnybody) {
    Manager manager(second_touch(3, 1));
    send_out(manager, 1, kX);
    manager.add_sequence(request(3, joined(kX, {1})));  // brings it back, and keeps it
    manager.run_transfers();
    send_out(manager, 4, kY);
    EXPECT_TRUE(cached(manager, kX) && cached(manager, kY));
    EXPECT_EQ(declined(manager), 0U);
}

TEST(HostAdmission, AnIncompleteBlockIsNeverKnown) {
    Manager manager(second_touch(2, 1));
    send_out(manager, 1, kX);
    const Tokens part(kY.begin(), kY.end() - 1);
    for (const RequestId id : {3, 5, 7}) {
        send_out(manager, id, part);
        EXPECT_TRUE(cached(manager, kX) && !cached(manager, part));
    }
}

TEST(HostAdmission, WithoutAHostTierThereIsNothingToChoose) {
    EXPECT_THROW(Manager{second_touch(2, 0)}, std::invalid_argument);
}

}  // namespace
}  // namespace kvfix
