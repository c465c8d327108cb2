#include "core/request.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string_view>

#include "core/steps.h"

namespace kvfix {
namespace {

template <class T>
void append_raw(std::string& out, T value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    out.append(raw, sizeof raw);
}

[[noreturn]] void bad(RequestId id, std::string_view field, const std::string& why) {
    throw std::invalid_argument("request " + std::to_string(id) + ", " + std::string(field) + ": " + why);
}

}  // namespace

// Each field starts with its own letter, so different identities never serialise alike.
std::string serialise_identity(std::optional<std::int64_t> lora, const Salt& salt) {
    std::string out;
    if (lora) {
        out += 'L';
        append_raw(out, *lora);
    }
    if (const auto* text = std::get_if<std::string>(&salt)) {
        out += 'S' + *text;
    } else if (const auto* raw = std::get_if<std::vector<std::uint8_t>>(&salt)) {
        out += 'B';
        out.append(raw->begin(), raw->end());
    } else if (const auto* number = std::get_if<std::int64_t>(&salt)) {
        out += 'I';
        append_raw(out, *number);
    }
    return out;
}

void check_extra_keys(const std::string& whose, std::span<const ExtraKey> keys, std::size_t num_tokens) {
    const auto bad_key = [&](const std::string& why) { throw std::invalid_argument(whose + ": " + why); };
    std::uint32_t end_before = 0;
    for (const ExtraKey& key : keys) {
        const std::string span = "[" + std::to_string(key.begin) + ", " + std::to_string(key.end) + ")";
        if (key.begin >= key.end || key.end > num_tokens) {
            bad_key("span " + span + " is empty or ends after the prompt's " + std::to_string(num_tokens) + " tokens");
        }
        if (key.begin < end_before) {
            bad_key("span " + span + " begins before " + std::to_string(end_before) + ", where the one before it ends");
        }
        if (key.digest.empty()) {
            bad_key("span " + span + " has an empty digest");
        }
        if (key.digest.size() > kDigestBytesMax) {
            bad_key("span " + span + " has a digest of " + std::to_string(key.digest.size()) + " bytes, more than " +
                    std::to_string(kDigestBytesMax) + "; usual cause: the image itself in place of its digest");
        }
        end_before = key.end;
    }
}

std::optional<std::size_t> find_negative(std::span<const TokenId> tokens) {
    // No early exit, and many values side by side, so that this vectorises and no register waits for its own result.
    std::array<TokenId, 32> bits{};
    std::span<const TokenId> rest = tokens;
    for (; rest.size() >= bits.size(); rest = rest.subspan(bits.size())) {
        for (std::size_t lane = 0; lane < bits.size(); ++lane) {
            bits[lane] |= rest[lane];
        }
    }
    TokenId all = 0;  // negative where one of them is
    for (const TokenId lane : bits) {
        all |= lane;
    }
    for (const TokenId token : rest) {
        all |= token;
    }
    if (all >= 0) {
        return std::nullopt;
    }
    return std::ranges::find_if(tokens, [](TokenId token) { return token < 0; }) - tokens.begin();
}

void refuse_negative(const std::string& whose, std::span<const TokenId> tokens, std::size_t position) {
    throw std::invalid_argument(whose + ": token " + std::to_string(position) + " is " +
                                std::to_string(tokens[position]) +
                                "; token ids are not negative (padding that was not cut off?)");
}

const RetentionRange* Retention::at(std::uint32_t token) const {
    const auto behind = std::ranges::partition_point(ranges, [token](const RetentionRange& range) {
        KVFIX_STEP();
        return range.token_begin <= token;
    });
    if (behind == ranges.begin()) {
        return nullptr;
    }
    const RetentionRange& range = *std::prev(behind);
    return !range.token_end || token < *range.token_end ? &range : nullptr;
}

void check_retention(const Retention& retention) {
    const auto check_priority = [](Priority priority) {
        if (priority > kPriorityMax) {
            throw std::invalid_argument("retention: priority " + std::to_string(priority) + " is over " +
                                        std::to_string(kPriorityMax));
        }
    };
    check_priority(retention.decode_priority);
    std::optional<std::uint32_t> end_before = 0;
    for (const RetentionRange& range : retention.ranges) {
        check_priority(range.priority);
        if (!end_before || range.token_begin < *end_before) {
            throw std::invalid_argument("retention: the range that begins at token " +
                                        std::to_string(range.token_begin) +
                                        " overlaps the one before it; ranges must be ascending and disjoint");
        }
        if (range.token_end && *range.token_end <= range.token_begin) {
            throw std::invalid_argument("retention: range [" + std::to_string(range.token_begin) + ", " +
                                        std::to_string(*range.token_end) + ") is empty");
        }
        end_before = range.token_end;
    }
}

Request::Request(RequestId request_id, std::vector<TokenId> prompt, std::uint32_t beams,
                 std::optional<std::int64_t> lora, Salt cache_salt, std::vector<ExtraKey> keys,
                 std::optional<Retention> keep)
    : id(request_id),
      tokens(std::move(prompt)),
      beam_width(beams),
      lora_id(lora),
      salt(std::move(cache_salt)),
      extra_keys(std::move(keys)),
      retention(std::move(keep)),
      identity(serialise_identity(lora, salt)) {
    if (tokens.empty()) {
        bad(id, "tokens", "the prompt is empty");
    }
    if (tokens.size() > kNone / 2) {
        bad(id, "tokens", std::to_string(tokens.size()) + " tokens are over the limit of " + std::to_string(kNone / 2));
    }
    if (const auto negative = find_negative(tokens)) {
        refuse_negative("request " + std::to_string(id) + ", tokens", tokens, *negative);
    }
    if (beam_width == 0) {
        bad(id, "beam_width", "0 is under the minimum of 1");
    }
    if (!extra_keys.empty()) {
        check_extra_keys("request " + std::to_string(id) + ", extra_keys", extra_keys, tokens.size());
    }
}

std::string block_extras(std::span<const ExtraKey> keys, std::uint32_t begin, std::uint32_t end) {
    std::string out;
    const auto first = std::ranges::partition_point(keys, [&](const ExtraKey& k) { return k.end <= begin; });
    for (auto key = first; key != keys.end() && key->begin < end; ++key) {
        // Offsets from the block's first token: the same content at another place of its span is different content.
        append_raw(out, static_cast<std::int64_t>(key->begin) - begin);
        append_raw(out, static_cast<std::int64_t>(key->end) - begin);
        append_raw(out, static_cast<std::uint64_t>(key->digest.size()));
        out += key->digest;
    }
    return out;
}

std::pair<Priority, std::optional<std::uint32_t>> Request::block_retention(std::uint32_t token) const {
    const RetentionRange* range = retention ? retention->at(token) : nullptr;
    return range != nullptr ? std::pair{range->priority, range->duration_ms}
                            : std::pair{kPriorityDefault, std::optional<std::uint32_t>{}};
}

std::vector<BlockExtra> read_extras(std::string_view extras) {
    std::vector<BlockExtra> out;
    const auto number = [&extras] {
        std::int64_t value = 0;
        std::memcpy(&value, extras.data(), sizeof value);
        extras.remove_prefix(sizeof value);
        return value;
    };
    while (!extras.empty()) {
        BlockExtra extra{.begin = number(), .end = number(), .digest = {}};
        const auto size = static_cast<std::size_t>(number());
        extra.digest = extras.substr(0, size);
        extras.remove_prefix(size);
        out.push_back(std::move(extra));
    }
    return out;
}

std::vector<BlockHash> block_hashes(const Request& request, const BlockHasher& hasher, std::uint32_t tokens_per_block) {
    std::vector<BlockHash> out;
    BlockHash hash = hasher.root(request.identity.text());
    for (std::uint32_t begin = 0; tokens_per_block <= request.num_tokens() - begin; begin += tokens_per_block) {
        hash = hasher.block(hash, std::span(request.tokens).subspan(begin, tokens_per_block),
                            request.block_extras(begin, begin + tokens_per_block));
        out.push_back(hasher.shown(hash));
    }
    return out;
}

}  // namespace kvfix
