// Block hashes are an interface to other processes and machines: the values may never change.
#include "core/block_hash.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/request.h"

namespace kvfix {
namespace {

// The recipe of block_hash.h, word for word and without a 128-bit type.
namespace recipe {

using Words = std::vector<std::uint64_t>;

constexpr std::uint64_t kK1 = 0x9e3779b97f4a7c15;
constexpr std::uint64_t kK2 = 0xd1b54a32d192ed03;
constexpr std::uint64_t kK3 = 0xabc98388fb8fac03;
constexpr std::uint64_t kK4 = 0x8bb84b93962eacc9;
constexpr std::uint64_t kK5 = 0x2d358dccaa6c78a5;

std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    for (unsigned bit = 0; bit < 64; ++bit) {
        if ((b >> bit & 1) != 0) {
            const std::uint64_t before = low;
            low += a << bit;
            high += (bit == 0 ? 0 : a >> (64 - bit)) + (low < before ? 1 : 0);
        }
    }
    return low ^ high;
}

Words words_of(const std::string& bytes) {
    Words words((bytes.size() + 15) / 16 * 2, 0);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        words[i / 8] |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (i % 8 * 8);
    }
    return words;
}

std::uint64_t digest(const Words& words, std::uint64_t n) {
    std::uint64_t sum = n * kK5;
    for (std::uint64_t i = 0; i < words.size() / 2; ++i) {
        sum += fold(words[2 * i] ^ (kK1 + i * kK3), words[2 * i + 1] ^ (kK2 + i * kK4));
    }
    return sum;
}

std::uint64_t mix(std::uint64_t x) { return fold(x ^ kK3, kK4) ^ (x >> 32); }

std::uint64_t root(const std::string& identity) { return mix(digest(words_of(identity), identity.size())); }

std::uint64_t block(std::uint64_t parent, const std::vector<TokenId>& tokens, const std::string& extras) {
    std::string raw;
    for (const TokenId token : tokens) {
        for (unsigned shift = 0; shift < 32; shift += 8) {
            raw += static_cast<char>(static_cast<std::uint32_t>(token) >> shift & 0xff);
        }
    }
    std::uint64_t sum = fold(parent ^ kK1, digest(words_of(raw), tokens.size()) ^ kK2) + parent;
    if (!extras.empty()) {
        sum += digest(words_of(extras), extras.size());
    }
    return mix(sum);
}

}  // namespace recipe

std::uint64_t block(std::uint64_t parent, const std::vector<TokenId>& tokens, const std::string& extras = "") {
    return hash_block(parent, tokens, extras);
}

TEST(BlockHash, RootsArePinned) {
    EXPECT_EQ(hash_root(""), 0xa46a4d1d4bf8f265U);
    EXPECT_EQ(hash_root("Ssalt"), 0x1b170d991b2be090U);
    EXPECT_EQ(hash_root(std::string("L\7\0\0\0\0\0\0\0", 9)), 0x9c132ea2f4a5f642U);
}

TEST(BlockHash, BlocksArePinned) {
    const std::uint64_t root = hash_root("");
    EXPECT_EQ(block(root, {1, 2, 3, 4}), 0xa8d52650f9d89ed5U);
    EXPECT_EQ(block(block(root, {1, 2, 3, 4}), {5, 6, 7, 8}), 0x86d414a177927eb7U) << "chained";
    std::vector<TokenId> whole(32);
    std::iota(whole.begin(), whole.end(), 0);
    EXPECT_EQ(block(root, whole), 0x5d00c7d39bad6a67U);
    EXPECT_EQ(block(root, {1, 2, 3}), 0xd32fc7c910061333U) << "an odd number of tokens";
    EXPECT_EQ(block(root, {-1, -2147483647 - 1, 2147483647, 0, 5}), 0xfacdd9b3942e1294U);
    EXPECT_EQ(block(0, std::vector<TokenId>(16, 0)), 0xb7f913e771cd1c39U);
}

TEST(BlockHash, ExtrasArePinned) {
    const std::uint64_t root = hash_root("");
    EXPECT_EQ(block(root, {1, 2, 3, 4}, "digest"), 0x1b045f815a3d56acU);
    EXPECT_EQ(block(root, {1, 2, 3, 4}, "twenty-one bytes long"), 0x4a9b58d9159e5c57U);
}

TEST(BlockHash, AgreesWithTheRecipeOfTheHeader) {
    std::mt19937_64 random(11);
    for (int round = 0; round < 300; ++round) {
        const std::uint64_t parent = random();
        std::vector<TokenId> tokens(random() % 70);
        for (TokenId& token : tokens) {
            token = static_cast<TokenId>(random());
        }
        std::string extras(random() % 40, '\0');
        for (char& byte : extras) {
            byte = static_cast<char>(random());
        }
        ASSERT_EQ(hash_root(extras), recipe::root(extras));
        ASSERT_EQ(block(parent, tokens, extras), recipe::block(parent, tokens, extras));
        ASSERT_EQ(block(parent, tokens), recipe::block(parent, tokens, ""));
    }
}

TEST(BlockHash, ZeroPaddingDoesNotMakeLengthsAlike) {
    std::set<std::uint64_t> hashes;
    for (std::size_t length = 0; length <= 64; ++length) {
        hashes.insert(block(1, std::vector<TokenId>(length, 0)));
    }
    EXPECT_EQ(hashes.size(), 65U);
}

TEST(BlockHash, EveryIdentityHasItsOwnRoot) {
    const auto root_hash = [](std::optional<std::int64_t> lora, const Salt& salt) {
        return Request(1, {1}, 1, lora, salt, {}, std::nullopt).root_hash;
    };
    const std::int64_t number = 0x31;  // serialised, its bytes begin as the text "1" does
    const std::set<std::uint64_t> roots{root_hash({}, {}),
                                        root_hash(0, {}),
                                        root_hash(1, {}),
                                        root_hash({}, std::string()),
                                        root_hash({}, std::string("1")),
                                        root_hash({}, std::vector<std::uint8_t>{'1'}),
                                        root_hash({}, number),
                                        root_hash({}, std::vector<std::uint8_t>{}),
                                        root_hash(1, std::string("1"))};
    EXPECT_EQ(roots.size(), 9U);
}

}  // namespace
}  // namespace kvfix
