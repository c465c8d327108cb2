// The copy is memcpy, whatever the alignment, and writes nothing beside its bytes.
#include "staging/copy_past_caches.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace kvfix {
namespace {

TEST(CopyPastCaches, CopiesEveryLengthFromAndToEveryAlignment) {
    constexpr std::size_t kRoom = 200;
    std::vector<unsigned char> from(kRoom);
    std::iota(from.begin(), from.end(), static_cast<unsigned char>(1));
    for (std::size_t to_at = 0; to_at < 17; ++to_at) {
        for (std::size_t from_at = 0; from_at < 17; ++from_at) {
            for (std::size_t bytes = 0; bytes <= 130; ++bytes) {
                std::vector<unsigned char> to(kRoom, 0);
                copy_past_caches(to.data() + to_at, from.data() + from_at, bytes);
                end_copies_past_caches();
                std::vector<unsigned char> expected(kRoom, 0);
                std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(from_at), bytes,
                            expected.begin() + static_cast<std::ptrdiff_t>(to_at));
                ASSERT_EQ(to, expected) << bytes << " bytes from " << from_at << " to " << to_at;
            }
        }
    }
}

}  // namespace
}  // namespace kvfix
