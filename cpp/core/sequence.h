// A live request: which blocks it holds in each window, how long it is, and how much of it is known and computed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/errors.h"
#include "core/request.h"
#include "core/stats.h"
#include "core/types.h"

namespace kvfix {

// A sequence's blocks in one window. Beams share the prompt's full blocks; what follows exists once per beam.
// With one beam everything is in `shared`.
struct HeldBlocks {
    std::vector<BlockIndex> shared;              // kNone where a block has left the window
    std::vector<std::vector<BlockIndex>> tails;  // [beam], only with several beams
    std::uint32_t left = 0;                      // leading blocks that have left the window
    // Leading blocks known to have their bytes. That stays so while they are held: their slots stay theirs.
    std::uint32_t sure = 0;

    std::size_t size() const { return shared.size() + (tails.empty() ? 0 : tails.front().size()); }
    BlockIndex at(std::uint32_t beam, std::size_t position) const {
        return position < shared.size() ? shared[position] : tails[beam][position - shared.size()];
    }
    // Every block that is held, each once, first to last, beam by beam.
    template <class Visit>
    void for_each(Visit&& visit) const {
        for (std::size_t i = left; i < shared.size(); ++i) {
            visit(shared[i]);
        }
        const std::size_t left_tail = left > shared.size() ? left - shared.size() : 0;
        for (const auto& tail : tails) {
            for (std::size_t i = left_tail; i < tail.size(); ++i) {
                visit(tail[i]);
            }
        }
    }
};

// Where storing goes on: everything before `position` has entered the tree, below `parent`.
struct StoreCursor {
    std::uint32_t position = 0;
    BlockIndex parent = kNone;     // the node at position - 1
    std::uint32_t generation = 0;  // of that node; if it has changed, storing starts over
};

struct Sequence {
    RequestPtr request;
    std::vector<TokenId> grown_tokens;  // known values after the prompt
    std::uint32_t length = 0;           // positions reserved, computed or not
    std::uint32_t computed = 0;         // leading positions whose values are in the cache, as far as we have been told
    // The first block that left a window while its bytes had not arrived. Whether they ever did is not known, so nothing from
    // there on is stored, in any window: every layer computes from what the layers before it made of those bytes.
    std::uint32_t doubtful_from = kNone;
    std::uint64_t mark = 0;  // scratch of calls that take several ids
    std::vector<HeldBlocks> windows;
    std::vector<StoreCursor> cursors;
    RequestStats stats;

    RequestId id() const { return request->id; }
    std::uint32_t beam_width() const { return request->beam_width; }
    std::uint32_t prompt_length() const { return request->num_tokens(); }
    // Leading positions whose tokens are known.
    std::uint32_t known() const { return prompt_length() + static_cast<std::uint32_t>(grown_tokens.size()); }
    // Leading positions that others may find: what is in the cache, and known to be what.
    std::uint32_t storable() const { return std::min(computed, known()); }
    void read_tokens(std::uint32_t position, std::span<TokenId> out) const;
};

// Sequences by request id. Addresses are stable; vectors of ended sequences are used again.
class SequenceTable {
  public:
    Sequence* find(RequestId id) const {
        const auto found = live_.find(id);
        return found == live_.end() ? nullptr : found->second.get();
    }
    Sequence& at(RequestId id) const {
        Sequence* sequence = find(id);
        if (sequence == nullptr) {
            throw UnknownRequest(id);
        }
        return *sequence;
    }
    Sequence& add(RequestPtr request, std::size_t windows);
    void remove(RequestId id);
    std::size_t size() const { return live_.size(); }
    // Ascending by id: the table's own order depends on its history.
    std::vector<const Sequence*> ordered() const;

  private:
    std::unordered_map<RequestId, std::unique_ptr<Sequence>> live_;
    std::vector<std::unique_ptr<Sequence>> spare_;
};

}  // namespace kvfix
