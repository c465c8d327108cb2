// The request of a caller: plain values, checked once, immutable afterwards. The binding object and the sequence share
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/block_hash.h"
#include "core/identity.h"
#include "core/types.h"

namespace kvfix {

struct RetentionRange {
    std::uint32_t token_begin;
    std::optional<std::uint32_t> token_end;
    Priority priority;
    std::optional<std::uint32_t> duration_ms;
};

struct Retention {
    std::vector<RetentionRange> ranges;  // ascending, disjoint
    Priority decode_priority = kPriorityDefault;
    std::optional<std::uint32_t> decode_duration_ms;

    // The range that holds the token, or null.
    const RetentionRange* at(std::uint32_t token) const;
};

// The position of the first negative token, if there is one.
std::optional<std::size_t> find_negative(std::span<const TokenId> tokens);
// Throws std::invalid_argument about the token. `whose` names the request and the field.
[[noreturn]] void refuse_negative(const std::string& whose, std::span<const TokenId> tokens, std::size_t position);

// Throws std::invalid_argument unless ranges are ascending and disjoint and priorities are 0..100.
void check_retention(const Retention& retention);

// A multimodal span: tokens [begin, end) stand for content with this digest.
struct ExtraKey {
    std::uint32_t begin;
    std::uint32_t end;
    std::string digest;
};

// The part of a span that a block holds, as offsets from the block's first token. It may begin before the block.
struct BlockExtra {
    std::int64_t begin;
    std::int64_t end;
    std::string digest;
};
// Reads what Request::block_extras wrote.
std::vector<BlockExtra> read_extras(std::string_view extras);

using Salt = std::variant<std::monostate, std::string, std::vector<std::uint8_t>, std::int64_t>;

// Returns "" if there is neither. Prefixes with different identities never meet.
std::string serialise_identity(std::optional<std::int64_t> lora, const Salt& salt);
// A block keeps the digests of its spans, and each look-up compares them. Those in use have at most 64 bytes, or 128
// hexadecimal digits.
inline constexpr std::size_t kDigestBytesMax = 256;

// Throws std::invalid_argument unless the spans are ascending and disjoint, have digests, and lie within that many
// tokens.
void check_extra_keys(const std::string& whose, std::span<const ExtraKey> keys, std::size_t num_tokens);
// The extras of the block over tokens [begin, end), serialised; empty if no span overlaps it.
std::string block_extras(std::span<const ExtraKey> keys, std::uint32_t begin, std::uint32_t end);

class Request {
  public:
    Request(RequestId request_id, std::vector<TokenId> prompt, std::uint32_t beams, std::optional<std::int64_t> lora,
            Salt cache_salt, std::vector<ExtraKey> keys, std::optional<Retention> keep);

    std::uint32_t num_tokens() const { return static_cast<std::uint32_t>(tokens.size()); }
    std::string block_extras(std::uint32_t begin, std::uint32_t end) const {
        return kvfix::block_extras(extra_keys, begin, end);
    }
    // The retention of a new block whose first token is `token`.
    std::pair<Priority, std::optional<std::uint32_t>> block_retention(std::uint32_t token) const;

    const RequestId id;
    const std::vector<TokenId> tokens;
    const std::uint32_t beam_width;
    const std::optional<std::int64_t> lora_id;
    const Salt salt;
    const std::vector<ExtraKey> extra_keys;  // ascending, disjoint
    const std::optional<Retention> retention;
    const Identity identity;
};

// The hashes of the prompt's full blocks, as a manager with that hasher computes them.
std::vector<BlockHash> block_hashes(const Request& request, const BlockHasher& hasher, std::uint32_t tokens_per_block);

using RequestPtr = std::shared_ptr<const Request>;

}  // namespace kvfix
