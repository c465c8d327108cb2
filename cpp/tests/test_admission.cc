// Batch admission: two phases, an exact budget, all or nothing, and numbers that belong to one request.
#include <gtest/gtest.h>

#include "core/errors.h"
#include "tests/support.h"

namespace kvfix {
namespace {

using testing::config;
using testing::joined;
using testing::kept_at;
using testing::Manager;
using testing::message_of;
using testing::request;
using testing::Tokens;
using testing::tokens;

const Tokens kX = tokens(8, 1000);
const Tokens kY = tokens(8, 2000);
const Tokens kW = tokens(8, 3000);

// X is in host, Y is cached where one more eviction would drop it, and W was cached after it. Two slots are free.
void fill(Manager& manager) {
    manager.cache(1, kX);
    manager.flush_primary(2);
    manager.cache(3, kY, kept_at(10));
    manager.cache(4, kW);
}

std::vector<RequestPtr> wants_x_and_y() {
    return {request(11, joined(kX, tokens(1, 1))), request(12, joined(kY, tokens(1, 2)))};
}

std::uint64_t promised(Manager& manager, const std::vector<RequestPtr>& requests) {
    std::uint64_t sum = 0;
    for (const RequestPtr& one : requests) {
        sum += manager.analyze_prefix_reuse(one).tokens;
    }
    return sum;
}

std::uint64_t reused(const BatchAdmission& admission) {
    std::uint64_t sum = 0;
    for (const Admission& one : admission.admitted) {
        sum += one.tokens_reused;
    }
    return sum;
}

TEST(Admission, ABatchReusesWhatWasPromisedThoughItsOnboardingEvicts) {
    Manager manager(config(6, 8));
    fill(manager);
    const auto requests = wants_x_and_y();
    const std::uint64_t expected = promised(manager, requests);
    ASSERT_EQ(expected, 16U);
    EXPECT_EQ(reused(manager.add_batch(requests)), expected);
    manager.check_invariants();
}

TEST(Admission, OneByOneTheSameRequestsReuseLess) {
    Manager manager(config(6, 8));
    fill(manager);
    const auto requests = wants_x_and_y();
    const std::uint64_t expected = promised(manager, requests);
    const std::uint64_t actual =
        manager.add_sequence(requests[0]).tokens_reused + manager.add_sequence(requests[1]).tokens_reused;
    EXPECT_LT(actual, expected) << "this world no longer shows what the two phases are for";
}

TEST(Admission, TheFirstClaimantOnboardsAndTheOthersShare) {
    Manager manager(config(8, 8));
    manager.cache(1, kX);
    manager.flush_primary(2);
    const BatchAdmission result =
        manager.add_batch({request(11, joined(kX, tokens(1, 1))), request(12, joined(kX, tokens(1, 2)))});
    EXPECT_EQ(result.admitted[0].blocks_onboarded, 2U);
    EXPECT_EQ(result.admitted[1].blocks_onboarded, 0U);
    EXPECT_EQ(result.admitted[1].tokens_reused, 8U);
    EXPECT_EQ(manager.take_transfers().items.size(), 2U);
}

TEST(Admission, TheBudgetIsNeverExceededByEvenOne) {
    for (std::uint64_t budget = 0; budget <= 25; ++budget) {
        Manager manager(config(32));
        manager.cache(1, kX);
        const BatchAdmission result = manager.add_batch(
            {request(11, joined(kX, tokens(3, 1))), request(12, tokens(9, 4000)), request(13, tokens(12, 5000))},
            budget);
        const std::vector<std::uint64_t> costs{3, 9, 12};
        std::size_t fits = 0;
        for (std::uint64_t sum = costs[0]; fits < costs.size() && sum <= budget;
             sum += fits < costs.size() ? costs[fits] : 0) {
            ++fits;
        }
        ASSERT_EQ(result.admitted.size(), fits) << "budget " << budget;
        ASSERT_EQ(result.deferred.size(), costs.size() - fits);
    }
}

TEST(Admission, TheFirstRequestThatDoesNotFitDefersAllAfterIt) {
    Manager manager(config(32));
    const BatchAdmission result = manager.add_batch(
        {request(11, tokens(4, 1000)), request(12, tokens(9, 2000)), request(13, tokens(1, 3000))}, 10);
    EXPECT_EQ(result.deferred, (std::vector<RequestId>{12, 13}));
}

TEST(Admission, DeferredRequestsLeaveNoTrace) {
    Manager deferring(config(32));
    Manager plain(config(32));
    deferring.cache(1, kX);
    plain.cache(1, kX);
    deferring.add_batch({request(11, tokens(4, 5000)), request(12, joined(kX, tokens(2, 1)))}, 5);
    plain.add_batch({request(11, tokens(4, 5000))});
    EXPECT_EQ(deferring.digest(), plain.digest());
}

TEST(Admission, AFullyCachedPromptStillComputesItsLastToken) {
    Manager manager(config(8));
    manager.cache(1, kX);
    const Admission admission = manager.add_sequence(request(2, kX));
    EXPECT_EQ(admission.tokens_reused, 7U);
    EXPECT_EQ(admission.tokens_new, 1U);
}

TEST(Admission, ABatchThatCannotBeServedChangesNothing) {
    Manager manager(config(6, 8));
    fill(manager);
    const std::uint64_t before = manager.digest();
    auto requests = wants_x_and_y();
    requests.push_back(request(13, tokens(1, 9000)));
    EXPECT_THROW(manager.add_batch(requests), OutOfBlocks);
    EXPECT_EQ(manager.digest(), before);
    manager.check_invariants();
}

TEST(Admission, ARefusedBatchLeavesTheEvictionOrderAlone) {
    Manager tried(config(6));
    Manager untried(config(6));
    for (Manager* manager : {&tried, &untried}) {
        manager->cache(1, kX);
        manager->cache(2, kY);
    }
    EXPECT_THROW(tried.add_batch({request(11, joined(kX, tokens(40, 1)))}), OutOfBlocks);
    for (Manager* manager : {&tried, &untried}) {
        manager->add_sequence(request(12, tokens(12, 9000)));
    }
    EXPECT_EQ(tried.reusable(kX), untried.reusable(kX));
    EXPECT_EQ(tried.digest(), untried.digest());
}

TEST(Admission, OutOfBlocksSaysWhatIsMissingWhere) {
    Manager manager(config(3));
    try {
        manager.add_sequence(request(1, tokens(20, 1000)));
        FAIL() << "five blocks fit three slots";
    } catch (const OutOfBlocks& error) {
        EXPECT_EQ(error.blocks_needed, 5U);
        EXPECT_EQ(error.blocks_free, 3U);
        EXPECT_EQ(error.window_size, std::nullopt);
    }
}

// A scheduler that evicts no request counts a prompt's blocks, and admits what the pool holds. A source that is copied
// would be one block more, in vain as often as it is tried again.
TEST(Admission, ABatchThatNeedsEveryBlockIsAdmittedWithoutTheCopiesThatNeedOneMore) {
    Manager manager(config(6));
    manager.cache(1, kX);
    manager.cache(2, kY);
    const Tokens like_x = joined({kX[0], kX[1], kX[2], 9}, tokens(4, 4000));
    const Tokens like_y = joined({kY[0], kY[1], kY[2], 9}, tokens(8, 5000));
    const std::vector<RequestPtr> batch{request(11, like_x), request(12, like_y)};
    std::vector<Admission> admitted;
    ASSERT_NO_THROW(admitted = manager.add_batch(batch).admitted);
    ASSERT_EQ(admitted.size(), 2U);
    EXPECT_EQ(admitted[0].tokens_reused + admitted[1].tokens_reused, 3U) << "the block to spare serves one";
    EXPECT_EQ(manager.run_transfers().size(), 1U);
    manager.check_invariants();
}

TEST(Admission, ABadRequestIsNamedWithItsFieldAndNothingIsAdmitted) {
    Manager manager(config(8));
    manager.add_sequence(request(7, kX));
    const std::uint64_t before = manager.digest();
    const auto refusal = [&](const RequestPtr& bad) {
        return message_of<std::invalid_argument>([&] { manager.add_batch({request(11, kY), bad}); });
    };
    EXPECT_NE(refusal(request(7, kW)).find("request 7, request_id"), std::string::npos);
    EXPECT_NE(refusal(request(11, kW)).find("request 11, request_id"), std::string::npos);
    EXPECT_NE(refusal(request(12, kW, {.beam_width = 2})).find("request 12, beam_width"), std::string::npos);
    EXPECT_EQ(manager.digest(), before);
}

// ---------------------------------------------------------------------------------------------------------- numbers

TEST(Admission, NumbersBelongToTheRequestWhateverSharedItsBatch) {
    Manager manager(config(16));
    manager.cache(1, kX);
    manager.add_batch({request(11, joined(kX, tokens(5, 1))), request(12, kY)});
    const RequestStats hit = manager.get_request_stats(11);
    const RequestStats miss = manager.get_request_stats(12);
    EXPECT_EQ(hit.tokens_reused, 8U);
    EXPECT_EQ(hit.blocks_reused, 2U);
    EXPECT_EQ(hit.blocks_new, 2U);
    EXPECT_EQ(hit.blocks_missed, 1U);
    EXPECT_EQ(miss.tokens_reused, 0U);
    EXPECT_EQ(miss.blocks_new, 2U);
    EXPECT_EQ(miss.blocks_missed, 2U);
}

TEST(Admission, AnalysisChangesNothing) {
    Manager manager(config(6, 8));
    fill(manager);
    const std::uint64_t before = manager.digest();
    const PrefixReuse reuse = manager.analyze_prefix_reuse(request(11, joined(kX, tokens(1, 1))));
    EXPECT_EQ(reuse.tokens, 8U);
    EXPECT_EQ(reuse.blocks_primary, 0U);
    EXPECT_EQ(reuse.blocks_host, 2U);
    EXPECT_EQ(manager.digest(), before);
}

}  // namespace
}  // namespace kvfix
