// Block hashes are an interface to other processes and machines, so for one seed the values may never change.
#include "core/block_hash.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/prefix_hashes.h"
#include "core/request.h"

namespace kvfix {
namespace {

// Word by word as the header says, built from single bytes.
std::string bytes_of(std::uint64_t word) {
    std::string out;
    for (unsigned shift = 0; shift < 64; shift += 8) {
        out += static_cast<char>(word >> shift & 0xff);
    }
    return out;
}

constexpr Secret kCounting{0x0706050403020100, 0x0f0e0d0c0b0a0908};

std::string counting(std::size_t size) {
    std::string out(size, '\0');
    std::iota(out.begin(), out.end(), '\0');
    return out;
}

// Under the key 00..0f, the hash of the bytes 00, 01, ... below `size`, as tests/core/model/block_hash.py computes it.
TEST(SipHash, GivesTheReferencesHashes) {
    const std::array<std::pair<std::size_t, Hash128>, 7> expected{{{0, {0xbea58827b2bc7ee7, 0x013030dd6adb62fd}},
                                                                   {1, {0xa8edd36004376ffc, 0x63f02f2bcc73055e}},
                                                                   {7, {0xc3e0aaf223b98410, 0x77ab4808c82e2fa6}},
                                                                   {8, {0xb4dae3d5e1fe12aa, 0x99c7f935ab164f72}},
                                                                   {15, {0x6c52bdb205557ec1, 0x09017e1eeccd2129}},
                                                                   {63, {0x6f42fe4ee300584c, 0xad6052a70a6b9f07}},
                                                                   {255, {0xa558210ac1a428f5, 0xe93ebbaed065a4f1}}}};
    for (const auto& [size, hash] : expected) {
        EXPECT_EQ(SipHash(kCounting).end(counting(size)), hash) << size << " bytes";
    }
}

TEST(SipHash, IsOfTheBytesHoweverTheyCome) {
    const std::string message = counting(61);
    SipHash in_words(kCounting);
    in_words.add(message.data(), 40);
    std::uint64_t word = 0;
    std::memcpy(&word, message.data() + 40, sizeof word);
    in_words.add(word);
    EXPECT_EQ(in_words.end(std::string_view(message).substr(48)), SipHash(kCounting).end(message));
}

TEST(SipHash, AKeyForAPurposeIsOfSecretAndPurpose) {
    const std::set<std::uint64_t> keys{key_for({1, 0}, "a").low, key_for({1, 0}, "b").low, key_for({0, 1}, "a").low,
                                       key_for({1, 0}, "a").high};
    EXPECT_EQ(keys.size(), 4U);
}

constexpr Secret kSeed{0x0123456789abcdef, 0xfedcba9876543210};

BlockHash recipe(const std::string& message) { return SipHash(key_for(kSeed, "block hashes")).end(message); }

std::string message_of(const BlockHash& parent, const std::vector<TokenId>& tokens, const std::string& extras) {
    std::string out = bytes_of(tokens.size()) + bytes_of(parent.first) + bytes_of(parent.second);
    for (std::size_t i = 0; i < tokens.size(); i += 2) {
        const std::uint64_t upper = i + 1 < tokens.size() ? static_cast<std::uint32_t>(tokens[i + 1]) : 0;
        out += bytes_of(upper << 32 | static_cast<std::uint32_t>(tokens[i]));
    }
    return out + extras;
}

TEST(BlockHash, AgreesWithTheRecipeOfTheHeader) {
    const BlockHasher hasher(kSeed);
    const BlockHash root = hasher.root("Ssalt");
    EXPECT_EQ(root, recipe(bytes_of(0) + "Ssalt"));
    std::vector<TokenId> tokens;
    for (std::size_t count = 0; count <= 70; ++count) {
        for (const std::string& extras : {std::string(), std::string("digest"), counting(40)}) {
            ASSERT_EQ(hasher.block(root, tokens, extras), recipe(message_of(root, tokens, extras))) << count;
        }
        tokens.push_back(static_cast<TokenId>(1000003 * count));
    }
}

TEST(BlockHash, AnotherSeedGivesOtherHashes) {
    const std::vector<TokenId> tokens{1, 2, 3, 4};
    std::set<BlockHash> hashes;
    for (const Secret& seed : {Secret{0, 0}, Secret{1, 0}, Secret{0, 1}, kSeed}) {
        const BlockHasher hasher(seed);
        hashes.insert(hasher.root(""));
        hashes.insert(hasher.block({}, tokens, ""));
    }
    EXPECT_EQ(hashes.size(), 8U);
}

// Otherwise a tenant whose salt is a victim's message would have a root with the hash of the victim's block.
TEST(BlockHash, NoIdentityIsABlock) {
    const BlockHasher hasher(kSeed);
    const std::vector<TokenId> tokens{1, 2, 3, 4};
    const BlockHash victim = hasher.block(hasher.root(""), tokens, "");
    const std::string message = message_of(hasher.root(""), tokens, "");
    EXPECT_EQ(recipe(message), victim);
    EXPECT_NE(hasher.root(message), victim);
    EXPECT_NE(hasher.root(message.substr(8)), victim);
}

TEST(BlockHash, WherePartsOfAMessageEndCounts) {
    const BlockHasher hasher(kSeed);
    std::set<BlockHash> hashes;
    for (std::size_t length = 0; length <= 64; ++length) {
        hashes.insert(hasher.block({}, std::vector<TokenId>(length, 0), ""));
        hashes.insert(hasher.block({}, std::vector<TokenId>(2, 0), std::string(length + 1, '\0')));
    }
    EXPECT_EQ(hashes.size(), 130U);
}

TEST(BlockHash, FewerBitsAreTheFirstOnes) {
    const std::vector<TokenId> tokens{1, 2, 3, 4};
    const BlockHash whole = BlockHasher(kSeed).block({}, tokens, "");
    EXPECT_EQ(BlockHasher(kSeed, 64).shown(whole), (BlockHash{whole.first, 0}));
    EXPECT_EQ(BlockHasher(kSeed, 3).shown(whole), (BlockHash{whole.first & 7, 0}));
    EXPECT_EQ(BlockHasher(kSeed, 65).shown(whole), (BlockHash{whole.first, whole.second & 1}));
}

TEST(BlockHash, EveryIdentityHasItsOwnRoot) {
    const auto root_hash = [](std::optional<std::int64_t> lora, const Salt& salt) {
        return BlockHasher(kSeed).root(Request(1, {1}, 1, lora, salt, {}, std::nullopt).identity.text());
    };
    const std::int64_t number = 0x31;  // serialised, its bytes begin as the text "1" does
    const std::set<BlockHash> roots{root_hash({}, {}),
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

TEST(PrefixHashes, AreThoseOfTheWholePromptInAnyOrder) {
    std::vector<TokenId> tokens(23);
    std::iota(tokens.begin(), tokens.end(), 0);
    const auto request = std::make_shared<const Request>(1, std::move(tokens), 1, 2, Salt("a tenant"),
                                                         std::vector<ExtraKey>{{3, 9, "an image"}}, std::nullopt);
    for (const std::uint32_t bits : {5U, kBlockHashBits}) {
        const BlockHasher hasher({7, 8}, bits);
        const std::vector<BlockHash> all = block_hashes(*request, hasher, 4);
        PrefixHashes hashes(request, hasher, 4);
        for (const std::uint32_t block : {3U, 1U, 4U, 3U, 0U}) {
            EXPECT_EQ(hashes.at(block), all[block]);
        }
        EXPECT_THROW(hashes.at(5), InvariantViolation) << "the prompt does not fill it";
    }
}

}  // namespace
}  // namespace kvfix
