// The comparison of a live row with its shadow, by every vector width that this machine has, against a loop that anybody can check.
#include "staging/row_diff.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace kvfix {

bool operator==(const TableEntry& a, const TableEntry& b) { return a.index == b.index && a.value == b.value; }
void PrintTo(const TableEntry& entry, std::ostream* out) { *out << entry.index << ": " << entry.value; }

namespace {

using Row = std::vector<std::int32_t>;
using Entries = std::vector<TableEntry>;

constexpr std::uint32_t kLengthMax = 150;  // two of the largest groups, and a tail of every length
constexpr std::uint32_t kMargin = 5;       // in front: rows begin anywhere; behind: must not be looked at
constexpr std::uint32_t kIndex = 4000000000;
constexpr TableEntry kUntouched{77, -77};

class RowDiff : public ::testing::TestWithParam<DiffWidth> {
  protected:
    void SetUp() override {
        if (!can_diff(GetParam())) {
            GTEST_SKIP() << "this machine has no vectors of that width";
        }
        find = diff_by(GetParam());
    }
    Entries found(const Row& live, const Row& shadow, std::uint32_t begin, std::uint32_t count) const {
        const RowPiece piece{live.data() + begin, shadow.data() + begin, count, kIndex};
        Entries out(count + kDiffSlack + 1, kUntouched);
        const std::size_t entries = find(piece, piece, out.data());
        EXPECT_EQ(out.back(), kUntouched) << "length " << count << ": written past the room";
        out.resize(entries);
        return out;
    }
    void expect_as_loop(const Row& live, const Row& shadow, std::uint32_t begin, std::uint32_t count) const {
        Entries expected;
        for (std::uint32_t i = 0; i < count; ++i) {
            if (live[begin + i] != shadow[begin + i]) {
                expected.push_back({kIndex + i, live[begin + i]});
            }
        }
        ASSERT_EQ(found(live, shadow, begin, count), expected) << "length " << count << ", begin " << begin;
    }

    FindChanges find = nullptr;
};

TEST_P(RowDiff, FindsWhatALoopFindsAtEveryLength) {
    std::mt19937 random(7);
    for (std::uint32_t count = 0; count <= kLengthMax; ++count) {
        for (std::uint32_t begin = 0; begin < kMargin; ++begin) {
            // From everything changed to nothing changed; the margins always differ.
            for (const unsigned one_in : {1U, 2U, 9U, 40U, 1000000U}) {
                const Row shadow(2 * kMargin + kLengthMax, 3);
                Row live(shadow.size(), -3);
                for (std::uint32_t i = begin; i < begin + count; ++i) {
                    live[i] = random() % one_in == 0 ? static_cast<std::int32_t>(random()) : 3;
                }
                expect_as_loop(live, shadow, begin, count);
            }
        }
    }
}

TEST_P(RowDiff, FindsASingleChangeAtEveryPlace) {
    const Row shadow(2 * kMargin + kLengthMax, -1);
    for (std::uint32_t count = 1; count <= kLengthMax; ++count) {
        for (std::uint32_t at = 0; at < count; ++at) {
            Row live = shadow;
            live[kMargin + at] = 0;
            expect_as_loop(live, shadow, kMargin, count);
        }
    }
}

TEST_P(RowDiff, FindsAChangeOfEveryBitAtEveryPlace) {
    constexpr std::uint32_t kGroups = 64;
    const Row shadow(kGroups, 0x5a5a5a5a);
    for (std::uint32_t at = 0; at < kGroups; ++at) {
        for (int bit = 0; bit < 32; ++bit) {
            Row live = shadow;
            live[at] = static_cast<std::int32_t>(static_cast<std::uint32_t>(live[at]) ^ (1U << bit));
            expect_as_loop(live, shadow, 0, kGroups);
        }
    }
}

TEST_P(RowDiff, FindsWhatALoopFindsInWholePieces) {
    std::mt19937 random(11);
    Row shadow(kPieceMax);
    for (std::int32_t& entry : shadow) {
        entry = static_cast<std::int32_t>(random());
    }
    for (int i = 0; i < 200; ++i) {
        Row live = shadow;
        for (unsigned changes = random() % kPieceMax; changes != 0; --changes) {
            live[random() % kPieceMax] = static_cast<std::int32_t>(random());
        }
        expect_as_loop(live, shadow, 0, static_cast<std::uint32_t>(kPieceMax - random() % 70));
    }
}

INSTANTIATE_TEST_SUITE_P(Widths, RowDiff, ::testing::Values(DiffWidth::portable, DiffWidth::avx2, DiffWidth::avx512),
                         [](const auto& named) {
                             return std::string(named.param == DiffWidth::portable ? "Portable"
                                                : named.param == DiffWidth::avx2   ? "Avx2"
                                                                                   : "Avx512");
                         });

TEST(BestDiff, IsTheWidestThatThisMachineHas) {
    const DiffWidth widest = can_diff(DiffWidth::avx512) ? DiffWidth::avx512
                             : can_diff(DiffWidth::avx2) ? DiffWidth::avx2
                                                         : DiffWidth::portable;
    EXPECT_EQ(best_diff(), diff_by(widest));
    EXPECT_TRUE(can_diff(DiffWidth::portable));
}

}  // namespace
}  // namespace kvfix
