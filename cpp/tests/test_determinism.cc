// The same calls give the same state on every rank, and digest() distinguishes states.
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "tests/support.h"

namespace kvfix {
namespace {

using testing::config;
using testing::joined;
using testing::kept_at;
using testing::Manager;
using testing::request;
using testing::Tokens;
using testing::tokens;

const Tokens kX = tokens(8, 1000);
const Tokens kY = tokens(8, 2000);

TEST(Determinism, TheSameCallsGiveTheSameDigestAfterEachOfThem) {
    Manager one(config(8, 8));
    Manager other(config(8, 8));
    const std::vector<std::function<void(Manager&)>> calls{
        [](Manager& m) { m.cache(1, kX, kept_at(50, 10)); },
        [](Manager& m) { m.flush_primary(2); },
        [](Manager& m) { m.add_batch({request(3, joined(kX, {1})), request(4, tokens(6, 1000))}); },
        [](Manager& m) { m.run_transfers(); },
        [](Manager& m) { m.grow(3, Tokens{1, 2, 3}); },
        [](Manager& m) { m.pin(3); },
        [](Manager& m) { m.remove(3); },
        [](Manager& m) { m.advance_time(1000); },
    };
    for (const auto& call : calls) {
        call(one);
        call(other);
        ASSERT_EQ(one.digest(), other.digest());
    }
}

// Sequences that came and went rearrange hash maps and the spare objects behind them. Only what is there now counts as
// state.
TEST(Determinism, HowHashMapsCameToTheirOrderDoesNotMatter) {
    Manager one(config(8, 8));
    Manager other(config(8, 8));
    for (auto [manager, factor] : {std::pair{&one, RequestId{1}}, std::pair{&other, RequestId{7919}}}) {
        for (RequestId id = 1000; id < 1005; ++id) {
            manager->add_sequence(request(id * factor, tokens(4, 5000)));
        }
        for (RequestId id = 1005; id-- > 1000;) {
            manager->forget(id * factor);
        }
        for (const RequestId id : {1U, 2U, 3U}) {
            manager->add_sequence(request(id, tokens(4, static_cast<TokenId>(id * 1000))));
        }
    }
    EXPECT_EQ(one.digest(), other.digest());
}

// The parts of a digest are kept up to date only once a digest has been asked for. That must make no difference.
TEST(Determinism, WhoeverAsksLateGetsTheSameDigest) {
    const std::vector<std::function<void(Manager&)>> calls{
        [](Manager& m) { m.cache(1, kX, kept_at(50, 10)); },
        [](Manager& m) { m.flush_primary(2); },
        [](Manager& m) { m.add_batch({request(3, joined(kX, {1})), request(4, tokens(6, 1000), {.beam_width = 2})}); },
        [](Manager& m) { m.run_transfers(); },
        [](Manager& m) { m.grow(3, Tokens{1, 2, 3, 4, 5, 6}); },
        [](Manager& m) { m.rewind_kv_cache(3, 2); },
        [](Manager& m) { m.grow(4, 5); },
        [](Manager& m) { m.rewind_kv_cache(4, 3); },
        [](Manager& m) { m.remove(3); },
        [](Manager& m) { m.cache(5, tokens(16, 2000)); },
        [](Manager& m) { m.add_sequence(request(6, tokens(24, 3000))); },
        [](Manager& m) { ASSERT_NE(m.take_transfers().ticket, 0U) << "a ticket that has not ended"; },
        [](Manager& m) { m.forget(6); },
        [](Manager& m) { m.add_sequence(request(7, joined(tokens(16, 2000), {1}))); },
    };
    BlockManagerConfig beams = config(12, 4);
    beams.beam_width_max = 2;
    Manager early(beams);
    Manager late(beams);
    for (const auto& call : calls) {
        early.digest();
        call(early);
        call(late);
    }
    EXPECT_EQ(early.digest(), late.digest());
    for (Manager* manager : {&early, &late}) {  // the order in which slots and records are handed out
        manager->add_sequence(request(9, tokens(12, 9000)));
    }
    EXPECT_EQ(early.digest(), late.digest());
}

TEST(Determinism, ListsOfRequestsAscendWhateverTheOrderOfAdmission) {
    for (const std::vector<RequestId>& order :
         {std::vector<RequestId>{90, 5, 31, 7}, std::vector<RequestId>{7, 31, 5, 90}}) {
        Manager manager(config(12, 4));
        manager.cache(1, kX);
        manager.flush_primary(2);
        std::vector<RequestPtr> batch;
        for (const RequestId id : order) {
            batch.push_back(request(id, joined(kX, {static_cast<TokenId>(id)})));
        }
        manager.add_batch(batch);
        EXPECT_EQ(manager.fail(manager.take_transfers().ticket), (std::vector<RequestId>{5, 7, 31, 90}));
    }
}

// Two states that differ in one thing alone, so that no other part of the digest can speak for the part that it is about.
struct Differing {
    std::string in;
    std::function<void(Manager&)> one;
    std::function<void(Manager&)> other;
};

void use(Manager& manager, const Tokens& prompt) {
    manager.add_sequence(request(9, joined(prompt, {1})));
    manager.forget(9);
}

void pin_first(Manager& manager) { manager.pin_blocks_by_id(std::vector<BlockId>{BlockId{0}}); }

void admit_two(Manager& manager) {
    manager.add_sequence(request(8, tokens(4, 5000)));
    manager.add_sequence(request(9, tokens(4, 6000)));
}

// Others have stored the same blocks, so storing them again changes nothing else.
TEST(Determinism, OneThingThatDiffersShowsInTheDigest) {
    const std::vector<Differing> all{
        {"the number of pins", [](Manager& m) { pin_first(m); }, [](Manager& m) { pin_first(m), pin_first(m); }},
        {"the order of eviction", [](Manager& m) { use(m, kX), use(m, kY); },
         [](Manager& m) { use(m, kY), use(m, kX); }},
        {"the order of free slots", [](Manager& m) { admit_two(m), m.forget(8), m.forget(9); },
         [](Manager& m) { admit_two(m), m.forget(9), m.forget(8); }},
        {"the value of a grown token", [](Manager& m) { admit_two(m), m.grow(8, Tokens{1}); },
         [](Manager& m) { admit_two(m), m.grow(8, Tokens{2}); }},
    };
    for (const Differing& differing : all) {
        Manager one(config(8, 8));
        Manager other(config(8, 8));
        for (Manager* manager : {&one, &other}) {
            manager->cache(1, kX);
            manager->cache(2, kY);
        }
        EXPECT_EQ(one.digest(), other.digest());
        differing.one(one);
        differing.other(other);
        EXPECT_NE(one.digest(), other.digest()) << differing.in;
    }
}

TEST(Determinism, StatesThatWouldActDifferentlyHaveDifferentDigests) {
    const std::vector<std::pair<std::string, std::function<void(Manager&)>>> states{
        {"two cached prompts", [](Manager&) {}},
        {"the other eviction order", [](Manager& m) { m.add_sequence(request(9, joined(kX, {1}))), m.forget(9); }},
        {"another priority", [](Manager& m) { m.add_sequence(request(9, joined(kY, {1}), kept_at(36))), m.forget(9); }},
        {"a running duration",
         [](Manager& m) { m.add_sequence(request(9, joined(kY, {1}), kept_at(35, 9))), m.forget(9); }},
        {"a live sequence", [](Manager& m) { m.add_sequence(request(9, joined(kY, {1}))); }},
        {"another live sequence", [](Manager& m) { m.add_sequence(request(8, joined(kY, {1}))); }},
        {"a live sequence with room to grow",
         [](Manager& m) { m.add_sequence(request(9, joined(kY, {1}))), m.grow(9, 1); }},
        {"a live sequence with a known token",
         [](Manager& m) { m.add_sequence(request(9, joined(kY, {1}))), m.grow(9, Tokens{1}); }},
        {"a live sequence with a computed token",
         [](Manager& m) { m.add_sequence(request(9, joined(kY, {1}))), m.grow(9, 1), m.grow(9, 0, 10); }},
        {"a computed prompt",
         [](Manager& m) { m.add_sequence(request(9, joined(kY, {1}))), m.store_context_blocks(9, 9); }},
        {"a pin", [](Manager& m) { m.pin_blocks_by_id(std::vector<BlockId>{BlockId{0}}); }},
        {"a queued copy", [](Manager& m) { m.add_sequence(request(9, tokens(24, 9000))); }},
        {"a copy under way", [](Manager& m) { m.add_sequence(request(9, tokens(24, 9000))), m.take_transfers(); }},
        {"a copy that has ended", [](Manager& m) { m.add_sequence(request(9, tokens(24, 9000))), m.run_transfers(); }},
        {"a later time", [](Manager& m) { m.advance_time(5); }},
        {"nothing cached", [](Manager& m) { m.reset_reuse_state(); }},
    };
    std::set<std::uint64_t> digests;
    for (const auto& [name, reach] : states) {
        Manager manager(config(8, 8));
        manager.cache(1, kX);
        manager.cache(2, kY);
        reach(manager);
        EXPECT_TRUE(digests.insert(manager.digest()).second) << name << " has the digest of another state";
    }
}

}  // namespace
}  // namespace kvfix
