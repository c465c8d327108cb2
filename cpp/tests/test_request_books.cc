// Notes between the calls of a server's loop: one batch, in the right order, and nothing is stored before it is
// computed.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "core/request_books.h"
#include "tests/support.h"

namespace kvfix {
namespace {

using testing::config;
using testing::joined;
using testing::kTokensPerBlock;
using testing::Manager;
using testing::request;
using testing::Tokens;
using testing::tokens;
using Settled = RequestBooks::Settled;
using StartAnswer = RequestBooks::StartAnswer;

PromptPtr prompt(RequestId id, Tokens of, bool is_private = false) {
    return std::make_shared<Prompt>(request(id, std::move(of)), is_private);
}

struct Served {
    explicit Served(BlockManagerConfig of = config(16), std::optional<std::uint32_t> chunk = std::nullopt)
        : manager(std::move(of)), books(manager, chunk, chunk ? std::optional(2 * *chunk) : std::nullopt) {}
    ~Served() { manager.check_invariants(); }

    // A request from its arrival to its end, which leaves its prompt behind.
    void leave_behind(RequestId id, const Tokens& of) {
        books.add(prompt(id, of), 8, false);
        books.settle();
        books.report(id, static_cast<std::uint32_t>(of.size()));
        books.remove(id, static_cast<std::uint32_t>(of.size()));
        books.take_admitted();
    }
    std::uint64_t cached(const Tokens& of) { return manager.analyze_prefix_reuse(request(999, of)).tokens; }

    Manager manager;
    RequestBooks books;
};

TEST(RequestBooks, AdmitsWhatIsNotedInOneBatch) {
    Served s(config(4));
    const Tokens known = tokens(2 * kTokensPerBlock, 0);
    s.leave_behind(1, known);
    // One by one, the first would evict what the second finds.
    s.books.add(prompt(2, tokens(2 * kTokensPerBlock, 1000)), 8, false);
    s.books.add(prompt(3, joined(known, {7})), 8, false);
    EXPECT_FALSE(s.books.holds(3));
    EXPECT_TRUE(s.books.knows(3));
    EXPECT_THROW(s.books.settle(), OutOfBlocks) << "together they need 5 blocks";
    EXPECT_FALSE(s.books.knows(3)) << "a batch that does not fit is forgotten";
    s.books.add(prompt(4, tokens(kTokensPerBlock, 1000)), 8, false);
    s.books.add(prompt(5, joined(known, {7})), 8, false);
    EXPECT_EQ(s.books.settle(), Settled::news);
    const auto admitted = s.books.take_admitted();
    ASSERT_EQ(admitted.size(), 2);
    EXPECT_EQ(admitted[1].id, 5);
    EXPECT_EQ(admitted[1].tokens_reused, known.size());
    EXPECT_EQ(s.books.settle(), Settled::quiet);
}

TEST(RequestBooks, RefusesARequestThatIsThere) {
    Served s;
    s.books.add(prompt(1, tokens(3, 0)), 8, false);
    s.books.settle();
    EXPECT_THROW(s.books.add(prompt(1, tokens(3, 0)), 8, false), std::runtime_error);
}

TEST(RequestBooks, GrowsByWhatIsNotedBehindAdmission) {
    Served s;
    s.books.add(prompt(1, tokens(3, 0)), 8, false);
    s.books.settle();
    for (const RequestId id : {1, 2, 1, 1}) {
        s.books.add_token(id);
    }
    s.books.add(prompt(2, tokens(4, 500)), 8, false);
    s.books.settle();
    EXPECT_EQ(s.manager.get_token_count(1), 6);
    EXPECT_EQ(s.manager.get_token_count(2), 5);
    EXPECT_FALSE(s.books.settle_shortly() == Settled::must_drain);
    EXPECT_EQ(s.manager.get_token_count(1), 6) << "a note counts once";
}

TEST(RequestBooks, SettlesShortlyWhatItWouldSettleAtLength) {
    Served quick;
    Served slow;
    for (Served* s : {&quick, &slow}) {
        s->books.add(prompt(1, tokens(3, 0)), 8, false);
        EXPECT_FALSE(s->books.settle_shortly()) << "an admission is not short";
        s->books.settle();
        s->books.take_admitted();
        s->books.add_token(1);
        EXPECT_TRUE(s->books.note_token(1));
    }
    EXPECT_EQ(quick.books.settle_shortly(), Settled::quiet);
    EXPECT_EQ(slow.books.settle(), Settled::quiet);
    EXPECT_EQ(quick.manager.digest(), slow.manager.digest());
}

TEST(RequestBooks, GrowthThatLacksBlocksWaitsForCopiesOnce) {
    Served s(config(2));
    s.books.add(prompt(1, tokens(2 * kTokensPerBlock, 0)), 8, false);
    s.books.settle();
    s.books.add_token(1);
    EXPECT_EQ(s.books.settle(), Settled::must_drain);
    EXPECT_THROW(s.books.settle(true), OutOfBlocks);
    EXPECT_EQ(s.books.settle(), Settled::news) << "the note is gone; the admission has not been taken";
    s.books.add_token(7);
    EXPECT_THROW(s.books.settle(), UnknownRequest);
    EXPECT_NO_THROW(s.books.settle());
}

TEST(RequestBooks, ADummysTokenIsRefusedAtOnce) {
    Served s(config(1));
    s.books.add(prompt(1, tokens(kTokensPerBlock, 0), true), 8, true);
    s.books.settle();
    EXPECT_TRUE(s.books.is_idle());
    EXPECT_FALSE(s.books.note_token(1));
    EXPECT_THROW(s.books.add_token(1), OutOfBlocks);
}

TEST(RequestBooks, SaysWhoHasGotBlocks) {
    Served s(config(4));
    const auto grow = [&] {
        s.books.add_token(1);
        s.books.settle();
        return s.books.take_who_got_blocks();
    };
    s.books.note_who_gets_blocks();
    s.books.add(prompt(1, tokens(2 * kTokensPerBlock - 1, 0)), 8, false);
    s.books.settle();
    const auto came = s.books.take_who_got_blocks();
    ASSERT_EQ(came.size(), 1);
    EXPECT_EQ(came[0].id, 1);
    EXPECT_EQ(came[0].tokens_reused, 0);
    EXPECT_TRUE(grow().empty()) << "the last position of its second block";
    const auto grew = grow();
    ASSERT_EQ(grew.size(), 1);
    EXPECT_EQ(grew[0].id, 1);
    EXPECT_EQ(grew[0].tokens_reused, std::nullopt);
    for (std::uint32_t more = 0; more < kTokensPerBlock; ++more) {
        s.books.add_token(1);
    }
    s.books.add(prompt(2, tokens(1, 1000)), 8, false);
    EXPECT_THROW(s.books.settle(true), OutOfBlocks) << "request 2 has the last block";
    const auto last = s.books.take_who_got_blocks();
    ASSERT_EQ(last.size(), 1) << "who came is told, although somebody else could not grow";
    EXPECT_EQ(last[0].id, 2);
}

TEST(RequestBooks, WhatIsFilledIsWhatWasReportedAndWhatWasSampledBehind) {
    Served s;
    s.books.add(prompt(1, tokens(6, 0)), 8, false);
    s.books.settle();
    EXPECT_EQ(s.books.filled(1, 6), 0);
    s.books.report(1, 6);
    EXPECT_EQ(s.books.filled(1, 6), 6);
    s.books.add_token(1);
    s.books.settle();
    EXPECT_EQ(s.books.filled(1, 7), 6) << "the sampled token has not gone through the model";
    s.books.add_token(1);
    s.books.settle();
    EXPECT_EQ(s.books.filled(1, 8), 7);
    EXPECT_EQ(s.books.filled(1, 20), 8) << "no more than is reserved";
    EXPECT_THROW(static_cast<void>(s.books.filled(9, 1)), UnknownRequest);
}

TEST(RequestBooks, AReportEndsTheChunkThatItBelongsTo) {
    Served s;
    const Tokens of = tokens(4 * kTokensPerBlock, 0);
    s.books.add(prompt(1, of), 8, false);
    s.books.settle();
    EXPECT_TRUE(s.books.look(1, 2 * kTokensPerBlock));
    EXPECT_FALSE(s.books.look(1, 4 * kTokensPerBlock)) << "the overlap loop has enqueued the rest";
    s.books.report(1, 4 * kTokensPerBlock);
    EXPECT_EQ(s.cached(joined(of, {1})), 2 * kTokensPerBlock);
    s.books.report(1, 4 * kTokensPerBlock);
    EXPECT_EQ(s.cached(joined(of, {1})), 4 * kTokensPerBlock);
    s.books.report(77, 1);  // it has ended before
}

TEST(RequestBooks, ReservesPromptsAheadOfTheirChunks) {
    BlockManagerConfig of = config(16);
    of.windows.front().window_size = 2 * kTokensPerBlock;
    constexpr std::uint32_t kChunk = 8;
    Served s(of, kChunk);
    s.books.add(prompt(1, tokens(40, 0)), 8, false);
    s.books.settle();
    EXPECT_EQ(s.manager.get_token_count(1), 2 * kChunk);
    EXPECT_TRUE(s.books.look(1, kChunk));
    s.books.settle();
    EXPECT_EQ(s.manager.get_token_count(1), 2 * kChunk) << "the next chunk is reserved";
    EXPECT_TRUE(s.books.look(1, 2 * kChunk));
    s.books.report(1, 2 * kChunk);
    s.books.settle();
    EXPECT_EQ(s.manager.get_token_count(1), 3 * kChunk);
    s.books.add(prompt(2, tokens(40, 1000), true), 8, true);
    s.books.settle();
    EXPECT_EQ(s.manager.get_token_count(2), 40) << "a dummy stands for a prompt that is computed";
}

TEST(RequestBooks, KeepsWhatWasComputedAndKnown) {
    Served s;
    const Tokens of = tokens(kTokensPerBlock, 0);
    const Tokens answer = tokens(kTokensPerBlock + 1, 100);
    s.books.add(prompt(1, of), 8, false);
    s.books.settle();
    s.books.report(1, kTokensPerBlock);
    for (std::size_t i = 0; i < answer.size(); ++i) {
        s.books.add_token(1);
    }
    s.books.settle();
    const Tokens all = joined(of, answer);
    const std::uint32_t wanted = s.books.remove(1, static_cast<std::uint32_t>(all.size()));
    EXPECT_EQ(wanted, all.size() - 1) << "the last token may not have gone through the model";
    EXPECT_TRUE(s.books.holds(1));
    s.books.remove(1, std::span(all).first(wanted));
    EXPECT_FALSE(s.books.holds(1));
    EXPECT_EQ(s.cached(joined(all, {1})), 2 * kTokensPerBlock);
}

TEST(RequestBooks, KeepsNothingOfWhatIsPrivateOrCancelled) {
    Served s;
    const Tokens of = tokens(2 * kTokensPerBlock, 0);
    s.books.add(prompt(1, of), 8, false);
    s.books.settle();
    EXPECT_EQ(s.books.remove(1, 2 * kTokensPerBlock), 0);
    EXPECT_EQ(s.cached(of), 0) << "nothing was computed";
    s.books.add(prompt(2, of), 8, false);
    s.books.settle();
    s.books.keep_all_private();
    s.books.report(2, 2 * kTokensPerBlock);
    EXPECT_EQ(s.books.remove(2, 2 * kTokensPerBlock + 3), 0);
    EXPECT_EQ(s.cached(of), 0);
    s.books.add(prompt(3, of), 8, false);
    s.books.add_token(3);
    EXPECT_EQ(s.books.remove(3, std::nullopt), 0) << "its notes go with it";
    EXPECT_EQ(s.books.settle(), Settled::quiet);
}

TEST(RequestBooks, ARequestWaitsForTheBlockThatAnotherComputes) {
    Served s;
    const Tokens shared = tokens(2 * kTokensPerBlock, 0);
    auto starting = s.books.start({16});
    auto first = prompt(1, joined(shared, {1}));
    auto second = prompt(2, joined(shared, {2}));
    EXPECT_EQ(s.books.ask(starting, *first, 4), StartAnswer::fits);
    starting.charge();
    EXPECT_EQ(s.books.ask(starting, *second, 4), StartAnswer::gains_by_waiting);
    s.books.add(first, 4, false);
    s.books.settle();
    auto next = s.books.start({13});
    EXPECT_EQ(s.books.ask(next, *second, 4), StartAnswer::gains_by_waiting) << "the first computes it now";
    s.books.report(1, 2 * kTokensPerBlock + 1);
    auto later = s.books.start({13});
    EXPECT_EQ(s.books.ask(later, *second, 4), StartAnswer::fits);
    EXPECT_EQ(later.tokens_found, 2 * kTokensPerBlock);
}

TEST(RequestBooks, ChargesWhoStarts) {
    Served s;
    auto starting = s.books.start({5});
    auto first = prompt(1, tokens(2 * kTokensPerBlock, 0));
    auto second = prompt(2, tokens(2 * kTokensPerBlock, 1000));
    EXPECT_EQ(s.books.ask(starting, *first, kTokensPerBlock), StartAnswer::fits);
    starting.charge();
    EXPECT_EQ(starting.free, std::vector<std::int64_t>{2});
    EXPECT_EQ(s.books.ask(starting, *second, kTokensPerBlock), StartAnswer::lacks_room);
    EXPECT_FALSE(starting.fits({3}));
    EXPECT_TRUE(starting.fits({2}));
}

TEST(RequestBooks, CountsWhatLiveRequestsWillTake) {
    Served s;
    s.books.add(prompt(1, tokens(kTokensPerBlock, 0)), 2 * kTokensPerBlock, false);
    s.books.settle();
    EXPECT_EQ(s.books.blocks_to_complete(std::vector<RequestId>{1}), std::vector<std::uint64_t>{2});
    s.books.add_token(1);
    s.books.settle();
    EXPECT_EQ(s.books.blocks_to_complete(std::vector<RequestId>{1}), std::vector<std::uint64_t>{1});
    EXPECT_THROW(s.books.blocks_to_complete(std::vector<RequestId>{9}), UnknownRequest);
}

TEST(RequestBooks, ABatchThatDoesNotFitLeavesNoNote) {
    Served s(config(1));
    s.books.add(prompt(1, tokens(2 * kTokensPerBlock, 0)), 8, false);
    s.books.add_token(1);
    EXPECT_THROW(s.books.settle(), OutOfBlocks);
    EXPECT_EQ(s.books.settle(), Settled::quiet);
}

TEST(RequestBooks, WhatHasEndedIsNoNews) {
    Served s;
    s.books.add(prompt(1, tokens(3, 0)), 8, false);
    s.books.settle();
    s.books.remove(1, std::nullopt);
    EXPECT_TRUE(s.books.take_admitted().empty());
    s.books.add(prompt(2, tokens(3, 0), true), 8, true);
    s.books.settle();
    s.books.remove(2, std::nullopt);
    s.books.add(prompt(2, tokens(3, 0)), 8, false);
    s.books.settle();
    EXPECT_FALSE(s.books.is_idle()) << "a dummy's id serves a request later";
}

TEST(RequestBooks, StoresAPromptThatATokenWasSampledBehind) {
    Served s;
    const Tokens of = tokens(2 * kTokensPerBlock, 0);
    s.books.add(prompt(1, of), 8, false);
    s.books.settle();
    s.books.store(1, 2 * kTokensPerBlock);
    EXPECT_EQ(s.cached(joined(of, {1})), 0) << "no step has ended that computed it";
    s.books.store(1, 2 * kTokensPerBlock + 1);
    EXPECT_EQ(s.cached(joined(of, {1})), 2 * kTokensPerBlock);
}

TEST(RequestBooks, KeepsNothingOfADummy) {
    Served s;
    const Tokens of = tokens(2 * kTokensPerBlock, 0);
    s.books.add(prompt(1, of), 8, true);
    s.books.settle();
    EXPECT_EQ(s.books.remove(1, 2 * kTokensPerBlock + 1), 0);
    EXPECT_EQ(s.cached(of), 0);
}

TEST(RequestBooks, APromptThatIsCachedWaitsForNobody) {
    Served s;
    const Tokens of = tokens(2 * kTokensPerBlock, 0);
    s.leave_behind(1, of);
    auto first = prompt(2, of);
    auto second = prompt(3, of);
    auto starting = s.books.start({16});
    EXPECT_EQ(s.books.ask(starting, *first, 4), StartAnswer::fits);
    EXPECT_EQ(s.books.ask(starting, *second, 4), StartAnswer::fits) << "both compute its last token";
}

TEST(RequestBooks, TheFirstChunkBeginsBehindWhatIsLoaded) {
    Served s;
    const Tokens of = tokens(4 * kTokensPerBlock, 0);
    s.books.add(prompt(1, of), 8, false);
    s.books.settle();
    s.books.begin_at(1, 2 * kTokensPerBlock);
    EXPECT_TRUE(s.books.look(1, 2 * kTokensPerBlock));
    s.books.report(1, 4 * kTokensPerBlock);
    EXPECT_EQ(s.cached(joined(of, {1})), 4 * kTokensPerBlock);
}

TEST(RequestBooks, BehindAFailedLoadLessCountsAsComputed) {
    Served s;
    const Tokens of = tokens(4 * kTokensPerBlock, 0);
    s.books.add(prompt(1, of), 8, false);
    s.books.settle();
    s.books.begin_at(1, 2 * kTokensPerBlock);
    EXPECT_TRUE(s.books.look(1, 0));
    EXPECT_FALSE(s.books.look(1, 4 * kTokensPerBlock));
    s.books.report(1, 4 * kTokensPerBlock);
    EXPECT_EQ(s.cached(joined(of, {1})), 0);
}

TEST(RequestBooks, WhatTheLastPositionSeesStaysInItsWindow) {
    BlockManagerConfig of = config(16);
    of.windows.front().window_size = 2 * kTokensPerBlock;
    Served s(of, 2 * kTokensPerBlock);
    s.books.add(prompt(1, tokens(2 * kTokensPerBlock, 0)), 8, false);
    s.books.settle();
    s.books.report(1, 2 * kTokensPerBlock);
    const auto grown = [&] {
        s.books.add_token(1);
        s.books.settle();
        return s.manager.ids(1, 2 * kTokensPerBlock).front();
    };
    for (std::uint32_t i = 0; i <= kTokensPerBlock; ++i) {
        EXPECT_GE(grown(), 0) << "the step before may still run";
    }
    EXPECT_EQ(grown(), -1);
}

TEST(RequestBooks, RefusesNumbersThatDoNotFitTheWindows) {
    Served s;
    EXPECT_THROW(s.books.start({1, 2}), std::invalid_argument);
    EXPECT_THROW(s.books.start({}), std::invalid_argument);
    auto starting = s.books.start({16});
    EXPECT_THROW(starting.charge(), std::logic_error) << "nobody was asked about";
    EXPECT_THROW(starting.fits({1, 2}), std::invalid_argument);
    EXPECT_THROW(RequestBooks(s.manager, 0, 4), std::invalid_argument);
    EXPECT_THROW(RequestBooks(s.manager, 4, 0), std::invalid_argument);
}

TEST(RequestBooks, CountsWhateverMovesBlocks) {
    Served s;
    std::uint64_t before = s.books.changes();
    const auto changed = [&] { return std::exchange(before, s.books.changes()) != before; };
    s.books.add(prompt(1, tokens(3, 0)), 8, false);
    EXPECT_FALSE(changed()) << "it has no block yet";
    s.books.settle();
    EXPECT_TRUE(changed());
    s.books.add_token(1);
    s.books.settle();
    EXPECT_TRUE(changed());
    s.books.rewind(1, 1);
    EXPECT_TRUE(changed());
    s.books.settle();
    EXPECT_FALSE(changed());
    s.books.remove(1, std::nullopt);
    EXPECT_TRUE(changed());
}

}  // namespace
}  // namespace kvfix
