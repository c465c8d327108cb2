#include "tests/program_values.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace kvfix::testing {
namespace {

Cell chain(Cell before, std::uint64_t value) {
    Cell mixed = (before ^ value) * 0x9e3779b97f4a7c15 + value;
    mixed ^= mixed >> 29;
    return mixed | 4;  // not one of the marks of a cell without content
}

std::vector<ExtraKey> make_extra_keys(ByteReader& bytes, std::uint32_t tokens) {
    std::vector<ExtraKey> keys;
    std::uint32_t begin = bytes.below(4);
    while (begin < tokens && keys.size() < 2) {
        keys.push_back({begin, std::min(tokens, begin + bytes.between(1, 4)), bytes.one_in(2) ? "x" : "yy"});
        begin = keys.back().end + bytes.below(3);
    }
    return keys;
}

Retention make_retention(ByteReader& bytes) {
    const auto priority = [&] { return bytes.pick(std::array<Priority, 6>{35, 0, 20, 40, 60, 100}); };
    const auto duration_ms = [&] { return bytes.one_in(2) ? std::optional(bytes.below(8)) : std::nullopt; };
    Retention retention;
    std::uint32_t begin = bytes.below(4);
    for (std::uint32_t ranges = bytes.below(3); ranges > 0; --ranges) {
        const std::uint32_t end = begin + bytes.between(1, 6);
        const bool open = ranges == 1 && bytes.one_in(2);
        retention.ranges.push_back({begin, open ? std::nullopt : std::optional(end), priority(), duration_ms()});
        begin = end + bytes.below(2);
    }
    retention.decode_priority = priority();
    retention.decode_duration_ms = duration_ms();
    check_retention(retention);
    return retention;
}

}  // namespace

BlockManagerConfig make_config(ByteReader& bytes) {
    BlockManagerConfig config;
    config.seed = {1, 2};  // two runs show the same events
    config.tokens_per_block = bytes.between(1, 4);
    const bool with_host = !bytes.one_in(4);
    const std::uint32_t windows = bytes.pick(std::array<std::uint32_t, 6>{0, 0, 0, 1, 2, 3});
    for (std::uint32_t window = 0; window < std::max(windows, 1U); ++window) {
        config.windows.push_back({.window_size = windows == 0 ? WindowSize() : config.tokens_per_block + 3 * window,
                                  .blocks_primary = bytes.between(1, 28),
                                  .blocks_host = with_host ? bytes.between(1, 16) : 0});
    }
    const auto smallest = std::ranges::min(config.windows, {}, &WindowConfig::blocks_primary).blocks_primary;
    config.beam_width_max = std::min(smallest, bytes.pick(std::array<std::uint32_t, 4>{1, 1, 2, 3}));
    config.block_reuse = !bytes.one_in(16);
    config.partial_reuse = !bytes.one_in(5);
    config.copy_on_partial_reuse = !bytes.one_in(4);
    const std::uint32_t offload = bytes.below(8);
    config.offload_priority_min = std::array<Priority, 4>{30, 30, 0, 50}[offload % 4];
    config.host_admission = with_host && offload >= 4 ? HostAdmission::adaptive : HostAdmission::all;
    config.events_max = bytes.pick(std::array<std::uint32_t, 3>{0, 3, 1000});
    config.hash_bits = bytes.pick(std::array<std::uint32_t, 4>{128, 128, 2, 1});
    return config;
}

OwnedSequence make_request(ByteReader& bytes, RequestId id, const BlockManagerConfig& config) {
    const std::array<Salt, 6> salts{Salt(),          std::string("1"), std::vector<std::uint8_t>{'1'},
                                    std::int64_t{1}, std::string(),    Salt()};
    std::vector<TokenId> prompt(bytes.between(1, 5 * config.tokens_per_block));
    for (TokenId& token : prompt) {
        token = bytes.pick(std::array<TokenId, 8>{0, 0, 0, 0, 0, 0, 1, 2});
    }
    const std::uint32_t realm = bytes.one_in(8) ? bytes.below(salts.size()) : 0;
    const auto lora_id = realm == salts.size() - 1 ? std::optional<std::int64_t>(1) : std::nullopt;
    const std::uint32_t beam_width = bytes.between(1, config.beam_width_max);
    auto keys =
        bytes.one_in(8) ? make_extra_keys(bytes, static_cast<std::uint32_t>(prompt.size())) : std::vector<ExtraKey>();
    auto retention = bytes.one_in(3) ? std::optional(make_retention(bytes)) : std::nullopt;
    OwnedSequence sequence{.request = std::make_shared<const Request>(id, prompt, beam_width, lora_id, salts[realm],
                                                                      std::move(keys), std::move(retention)),
                           .realm = realm,
                           .tokens = {},
                           .cells = {},
                           .writer = id};
    std::ranges::for_each(prompt, [&](TokenId token) { sequence.append(token); });
    return sequence;
}

std::optional<std::vector<TokenId>> make_whole_tokens(ByteReader& bytes, const OwnedSequence& sequence) {
    if (!bytes.one_in(3)) {
        return std::nullopt;
    }
    std::vector<TokenId> tokens = sequence.tokens;
    switch (bytes.below(6)) {
        case 1:
            tokens.push_back(1);
            break;
        case 2:
            ++tokens.front();
            break;
        case 3:
            tokens.resize(tokens.size() - bytes.below(sequence.length()));
            break;
        default:
            break;
    }
    return tokens;
}

void OwnedSequence::append(TokenId token) {
    const std::uint32_t position = length();
    Cell cell = chain(position == 0 ? realm + 100 : cells.back(), static_cast<std::uint64_t>(token));
    for (const ExtraKey& key : request->extra_keys) {
        if (key.begin <= position && position < key.end) {
            cell = chain(chain(cell, key.digest.size()), position - key.begin);
        }
    }
    tokens.push_back(token);
    cells.push_back(cell);
}

void OwnedSequence::rewind(std::uint32_t count) {
    tokens.resize(tokens.size() - count);
    cells.resize(tokens.size());
    written = std::min(written, length());
}

}  // namespace kvfix::testing
