// The memory of matching. The second question about a request walks, hashes and compares nothing. Whatever happens to
// the tree in between, the answer is the same as for a request without an earlier question.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/match_book.h"
#include "core/pause_point.h"
#include "tests/steps_of.h"
#include "tests/support.h"

namespace kvfix {
namespace {

using testing::config;
using testing::joined;
using testing::kTokensPerBlock;
using testing::Manager;
using testing::request;
using testing::RequestOptions;
using testing::steps_of;
using testing::Tokens;
using testing::tokens;

constexpr RequestId kAsked = 1000;
constexpr std::uint32_t kBlocks = 32;
const Tokens kPrefix = tokens(kBlocks * kTokensPerBlock, 1000);
const Tokens kPrompt = joined(kPrefix, tokens(kTokensPerBlock + 1, 5000));

PrefixReuse found_by(Manager& manager, const RequestPtr& asked) { return manager.analyze_prefix_reuse(asked); }

// The same request, without an earlier question about it.
RequestPtr twin_of(const RequestPtr& asked) {
    return request(asked->id, asked->tokens, {.beam_width = asked->beam_width});
}

// ------------------------------------------------------------------------------------------------ what it saves

TEST(MatchBook, TheSecondQuestionAndAdmissionWalkNoStep) {
    Manager manager(config(4 * kBlocks));
    manager.cache(1, kPrefix);
    const RequestPtr asked = request(kAsked, kPrompt);
    std::uint64_t tokens_found = 0;
    const std::uint64_t first = steps_of([&] { tokens_found = found_by(manager, asked).tokens; });
    const std::uint64_t second = steps_of([&] { EXPECT_EQ(found_by(manager, asked).tokens, tokens_found); });
    EXPECT_EQ(tokens_found, kPrefix.size());
    EXPECT_GE(first - second, kBlocks) << "each block is looked up and compared at the first question";
    EXPECT_LE(second, 8U) << "and none at the second";

    const std::uint64_t room = steps_of([&] { manager.blocks_to_admit(asked, 10); });
    EXPECT_LE(room, 8U);

    Manager other(config(4 * kBlocks));
    other.cache(1, kPrefix);
    const auto admit = [&](Manager& in) {
        return steps_of([&] { EXPECT_EQ(in.add_sequence(asked).tokens_reused, kPrefix.size()); });
    };
    const std::uint64_t remembered = admit(manager);
    const std::uint64_t afresh = admit(other);
    EXPECT_EQ(afresh - remembered, first - second) << "admission does the rest as before";
}

TEST(MatchBook, ARequestThatFindsNothingIsRememberedToo) {
    Manager manager(config(4 * kBlocks));
    for (RequestId id = 1; id <= 64; ++id) {
        manager.cache(id, tokens(kTokensPerBlock, static_cast<TokenId>(1000 * id)));
    }
    const RequestPtr asked = request(kAsked, tokens(kTokensPerBlock, 7));
    const std::uint64_t first = steps_of([&] { EXPECT_EQ(found_by(manager, asked).tokens, 0U); });
    const std::uint64_t second = steps_of([&] { EXPECT_EQ(found_by(manager, asked).tokens, 0U); });
    EXPECT_GT(first, second);
    EXPECT_LE(second, 8U);
}

TEST(MatchBook, APromptThatLeavesTheOneBeforeGoesItsOwnWay) {
    Manager manager(config(4 * kBlocks));
    manager.cache(1, kPrefix);
    Tokens fork = kPrefix;
    fork[9 * kTokensPerBlock] = 1;
    manager.cache(2, fork);
    const RequestOptions other{.lora_id = 1};
    manager.cache(3, kPrefix, other);
    Tokens image = kPrefix;
    const RequestOptions spanned{.extra_keys = {{6 * kTokensPerBlock, 7 * kTokensPerBlock, "image"}}};
    manager.cache(4, image, spanned);
    for (int times = 0; times < 2; ++times) {  // each one after each of the others
        EXPECT_EQ(manager.reusable(kPrompt), kPrefix.size());
        EXPECT_EQ(manager.reusable(joined(fork, {7})), fork.size());
        EXPECT_EQ(manager.reusable(tokens(12 * kTokensPerBlock + 2, 1000)), 12 * kTokensPerBlock + 1U);
        EXPECT_EQ(manager.reusable(kPrompt, other), kPrefix.size());
        EXPECT_EQ(manager.reusable(joined(fork, {7}), other), 9U * kTokensPerBlock);
        EXPECT_EQ(manager.reusable(kPrompt, spanned), kPrefix.size());
        EXPECT_EQ(manager.reusable(joined(fork, {7}), spanned), 9U * kTokensPerBlock);
    }
    manager.check_invariants();
}

// ------------------------------------------------------------------------------------------------ what happens in between

struct Between {
    std::string name;
    std::function<void(Manager&)> happens;
    bool host = false;
    WindowSize window = std::nullopt;
};

class BetweenQuestionAnd : public ::testing::TestWithParam<Between> {};

// Callers ask one manager first, and not its double. Both must admit the same, and so must their books agree.
TEST_P(BetweenQuestionAnd, AdmissionFindsWhatIsThere) {
    const auto started = [&] {
        BlockManagerConfig one = config(2 * kBlocks + 8, GetParam().host ? 4 * kBlocks : 0);
        one.windows.front().window_size = GetParam().window;
        auto manager = std::make_unique<Manager>(one);
        manager->cache(1, kPrefix);
        return manager;
    };
    const auto asked_before = started();
    const auto not_asked = started();
    const RequestPtr asked = request(kAsked, kPrompt);
    found_by(*asked_before, asked);
    asked_before->blocks_to_admit(asked, 4);
    for (Manager* manager : {asked_before.get(), not_asked.get()}) {
        GetParam().happens(*manager);
        manager->check_invariants();
    }
    EXPECT_EQ(found_by(*asked_before, asked).tokens, found_by(*not_asked, twin_of(asked)).tokens);
    EXPECT_EQ(asked_before->blocks_to_admit(asked, 4), not_asked->blocks_to_admit(twin_of(asked), 4));
    const Admission one = asked_before->add_sequence(asked);
    const Admission other = not_asked->add_sequence(asked);
    EXPECT_EQ(one.tokens_reused, other.tokens_reused);
    EXPECT_EQ(one.blocks_reused, other.blocks_reused);
    EXPECT_EQ(asked_before->ids(kAsked, GetParam().window), not_asked->ids(kAsked, GetParam().window));
    EXPECT_EQ(asked_before->digest(), not_asked->digest());
    asked_before->check_invariants();
}

// Another request needs the blocks of its end for a while.
void evict_its_end(Manager& manager) {
    manager.add_sequence(request(2, tokens((kBlocks + 16) * kTokensPerBlock, 9000)));
    manager.forget(2);
}

std::vector<Between> everything_that_happens() {
    return {
        {"nothing", [](Manager&) {}},
        {"the_whole_prefix_is_evicted", [](Manager& m) { m.flush_primary(2); }},
        {"its_end_is_evicted", evict_its_end},
        {"it_is_evicted_and_others_get_its_blocks",
         [](Manager& m) {
             m.flush_primary(2);
             m.cache(3, tokens(2 * kBlocks * kTokensPerBlock, 20'000));
         }},
        {"it_is_evicted_and_comes_back",
         [](Manager& m) {
             m.flush_primary(2);
             m.cache(3, kPrefix);
         }},
        {"more_of_the_prompt_is_stored", [](Manager& m) { m.cache(2, kPrompt); }},
        {"another_end_of_it_is_stored", [](Manager& m) { m.cache(2, joined(kPrefix, tokens(3, 5000))); }},
        {"something_else_is_stored", [](Manager& m) { m.cache(2, tokens(kTokensPerBlock, 9000)); }},
        {"everything_is_forgotten", [](Manager& m) { m.reset_reuse_state(); }},
        {"the_conversation_is_truncated",
         [](Manager& m) { m.truncate_blocks(request(2, kPrefix), 4 * kTokensPerBlock); }},
        {"the_same_of_another_tenant_is_truncated",
         [](Manager& m) {
             m.cache(2, kPrefix, {.lora_id = 1});
             m.truncate_blocks(request(3, kPrefix, {.lora_id = 1}), 0);
         }},
        {"another_request_takes_its_last_block_over",
         [](Manager& m) {
             Tokens other = kPrefix;
             other.back() = 1;
             m.add_sequence(request(2, std::move(other)));
         }},
        {"it_is_offloaded", [](Manager& m) { m.flush_primary(2); }, true},
        {"it_is_being_offloaded", evict_its_end, true},
        {"its_copies_fail",
         [](Manager& m) {
             evict_its_end(m);
             m.fail(m.take_transfers().ticket);
         },
         true},
        {"it_is_on_its_way_back",
         [](Manager& m) {
             m.flush_primary(2);
             m.add_sequence(request(3, joined(kPrefix, {1})));
         },
         true},
        {"in_a_window_nothing", [](Manager&) {}, false, 8 * kTokensPerBlock},
        {"in_a_window_its_beginning_goes", evict_its_end, false, 8 * kTokensPerBlock},
        {"in_a_window_it_goes_and_its_end_comes_back",
         [](Manager& m) {
             m.flush_primary(2);
             m.cache(3, kPrompt);
         },
         false, 8 * kTokensPerBlock},
    };
}

INSTANTIATE_TEST_SUITE_P(MatchBook, BetweenQuestionAnd, ::testing::ValuesIn(everything_that_happens()),
                         [](const auto& of) { return of.param.name; });

// Thread A has matched its batch and holds the lock. Thread B, which would drop what was matched, waits. After B, the
// answer that A got first is not used.
TEST(MatchBook, ADropByAnotherThreadBetweenQuestionAndAdmissionIsNoticed) {
    Manager manager(config(4 * kBlocks));
    manager.cache(1, kPrefix);
    const RequestPtr asked = request(kAsked, kPrompt);
    EXPECT_EQ(found_by(manager, asked).tokens, kPrefix.size());
    PausePoint matched("admit.planned");
    PausePoint met("lock.contended");
    std::atomic<bool> dropped = false;
    std::thread asking([&] { EXPECT_EQ(found_by(manager, asked).tokens, kPrefix.size()); });
    matched.await_arrival();
    std::thread dropping([&] {
        manager.reset_reuse_state();
        dropped = true;
        KVFIX_PAUSE("lock.contended");  // without a lock, nothing else says that it has come this far
    });
    met.await_arrival();
    EXPECT_FALSE(dropped);
    met.release();
    matched.release();
    asking.join();
    dropping.join();
    EXPECT_EQ(found_by(manager, asked).tokens, 0U);
    EXPECT_EQ(manager.add_sequence(asked).tokens_reused, 0U);
}

// Notes after a change must not make answers from before it count again.
TEST(MatchBook, AnAnswerFromBeforeAChangeStaysForgottenWhenOthersAskAfterIt) {
    Manager manager(config(4 * kBlocks));
    manager.cache(1, kPrefix);
    const RequestPtr asked = request(kAsked, kPrompt);
    const RequestPtr another = request(kAsked + 1, tokens(kTokensPerBlock, 9000));
    EXPECT_EQ(found_by(manager, asked).tokens, kPrefix.size());
    manager.reset_reuse_state();
    EXPECT_EQ(found_by(manager, another).tokens, 0U);
    EXPECT_EQ(found_by(manager, asked).tokens, 0U);
    EXPECT_EQ(manager.add_sequence(asked).tokens_reused, 0U);
}

// The request before found the block, and its copy failed. The block has left the tree, but its owner still has it.
TEST(MatchBook, ABlockThatWasLostIsNotTakenFromTheRequestBefore) {
    Manager manager(config(4, 4));
    const Tokens both = tokens(2 * kTokensPerBlock, 1000);
    manager.cache(1, both);
    manager.add_sequence(request(2, tokens(kTokensPerBlock + 1, 1000)));  // keeps the first block where it is
    manager.flush_primary(3);
    manager.add_sequence(request(4, joined(both, {1})));
    EXPECT_EQ(manager.fail(manager.take_transfers().ticket), std::vector<RequestId>{4});
    EXPECT_EQ(manager.reusable(joined(both, {2})), kTokensPerBlock);
    manager.check_invariants();
}

// If every hash collides, the book must still compare what it remembers.
TEST(MatchBook, CollidingPromptsAreNotTakenForEachOther) {
    BlockManagerConfig colliding = config(4 * kBlocks);
    colliding.hash_bits = 1;
    Manager manager(colliding);
    manager.cache(1, kPrefix);
    Tokens other = kPrompt;
    other[5 * kTokensPerBlock] = 1;
    const RequestPtr one = request(kAsked, kPrompt);
    const RequestPtr two = request(kAsked, other);
    for (int times = 0; times < 2; ++times) {
        EXPECT_EQ(found_by(manager, one).tokens, kPrefix.size());
        EXPECT_EQ(found_by(manager, two).tokens, 5 * kTokensPerBlock);
    }
}

// ------------------------------------------------------------------------------------------------ the book itself

// Two requests at one address: an entry belongs to the request, not to the address where it lay.
TEST(MatchBook, AnotherRequestAtTheSameAddressIsUnknown) {
    Window window(config(8), 0, 0);
    MatchBook book;
    alignas(Request) std::byte place[sizeof(Request)];
    const auto destroy = [](const Request* gone) { gone->~Request(); };
    const auto place_request = [&](Tokens prompt) {
        return RequestPtr(new (place) Request(1, std::move(prompt), 1, std::nullopt, {}, {}, std::nullopt), destroy);
    };
    RequestPtr first = place_request({1, 2, 3, 4});
    book.note(window, first, {{}, kvfix::Run{.begin = 0, .end = 0, .source = BlockIndex{3}, .tokens = 2}});
    MatchBook::Found found;
    EXPECT_TRUE(book.find(window, first, found));
    EXPECT_EQ(found.run.source, BlockIndex{3});
    first.reset();
    const RequestPtr second = place_request({5, 6, 7, 8});
    EXPECT_FALSE(book.find(window, second, found));
}

TEST(MatchBook, NothingIsNotedOrGivenAwayWhileSomethingIsInFlight) {
    Window window(config(8, 8), 0, 0);
    MatchBook book;
    MatchBook::Found found;
    const RequestPtr early = request(1, {1});
    const RequestPtr late = request(2, {2});
    book.note(window, early, {});
    for (const std::size_t tier : {kPrimary, kHost}) {
        window.in_flight[tier] = 1;
        EXPECT_FALSE(book.find(window, early, found));
        book.note(window, late, {});
        window.in_flight[tier] = 0;
        EXPECT_TRUE(book.find(window, early, found));
        EXPECT_FALSE(book.find(window, late, found));
    }
}

TEST(MatchBook, AFullBookKeepsWhatItHas) {
    constexpr RequestId kMost = 1024;
    Window window(config(8), 0, 0);
    MatchBook book;
    MatchBook::Found found;
    std::vector<RequestPtr> requests;
    for (RequestId id = 0; id <= kMost; ++id) {
        requests.push_back(request(id, {1}));
        book.note(window, requests.back(), {});
    }
    EXPECT_TRUE(book.find(window, requests[kMost - 1], found));
    EXPECT_FALSE(book.find(window, requests[kMost], found));

    MatchBook long_paths;
    const std::vector<BlockIndex> path(150'000, BlockIndex{0});
    long_paths.note(window, requests[0], {path, {}});
    long_paths.note(window, requests[1], {path, {}});
    long_paths.note(window, requests[2], {});
    EXPECT_TRUE(long_paths.find(window, requests[0], found));
    EXPECT_FALSE(long_paths.find(window, requests[1], found)) << "1 MiB is the most";
    EXPECT_TRUE(long_paths.find(window, requests[2], found));
}

}  // namespace
}  // namespace kvfix
