// The values of a ByteProgram: small pools, few tokens and short prompts, so that prefixes meet and room runs out.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/config.h"
#include "core/request.h"
#include "tests/byte_reader.h"
#include "tests/shadow_memory.h"

namespace kvfix::testing {

// A live sequence as its owner knows it.
struct OwnedSequence {
    RequestPtr request;
    std::uint64_t realm;          // stands for LoRA id and salt: content of different realms never meets
    std::vector<TokenId> tokens;  // all of them, including those whose values the manager was not given
    std::vector<Cell> cells;      // expected contents of the slots, one per token
    std::uint32_t written = 0;    // leading positions that have been reused or computed
    bool hurt = false;            // a transfer failed under it
    bool lost = false;            // a copy failed while it was suspended
    RequestId writer = 0;         // of the cells that it writes

    std::uint32_t length() const { return static_cast<std::uint32_t>(tokens.size()); }
    void append(TokenId token);
    void rewind(std::uint32_t count);
};

BlockManagerConfig make_config(ByteReader& bytes);
OwnedSequence make_request(ByteReader& bytes, RequestId id, const BlockManagerConfig& config);
// The tokens with which a caller ends a sequence: its own, some of them, too many, or another's.
std::optional<std::vector<TokenId>> make_whole_tokens(ByteReader& bytes, const OwnedSequence& sequence);

}  // namespace kvfix::testing
