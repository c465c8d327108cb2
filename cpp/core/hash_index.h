// Hash to tree blocks, by open addressing. Several blocks may share a hash, so the caller compares content. Runs stay
// short as long as no caller can choose hashes; index_hash.h sees to that.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "core/prefetch.h"
#include "core/steps.h"
#include "core/types.h"

namespace kvfix {

class HashIndex {
  public:
    explicit HashIndex(std::uint32_t blocks)
        : mask_(std::bit_ceil(std::uint64_t{blocks} * 3 / 2 + 2) - 1), entries_(mask_ + 1, Entry{0, kNone}) {}

    void prefetch(std::uint64_t hash) const { prefetch_memory(&entries_[hash & mask_]); }

    // The first block filed under a hash that looks like this one, or kNone. A hint for prefetching.
    BlockIndex hint(std::uint64_t hash) const {
        const Entry& entry = entries_[hash & mask_];
        return entry.tag == tag(hash) ? entry.block : kNone;
    }

    // The first block under this hash that `matches(block)` accepts, or kNone.
    template <class Matches>
    BlockIndex find(std::uint64_t hash, Matches&& matches) const {
        for (std::uint64_t at = hash & mask_; entries_[at].block != kNone; at = (at + 1) & mask_) {
            KVFIX_STEP();
            if (entries_[at].tag == tag(hash) && matches(entries_[at].block)) {
                return entries_[at].block;
            }
        }
        return kNone;
    }

    void insert(std::uint64_t hash, BlockIndex block) {
        std::uint64_t at = hash & mask_;
        while (entries_[at].block != kNone) {
            KVFIX_STEP();
            at = (at + 1) & mask_;
        }
        entries_[at] = Entry{tag(hash), block};
    }

    // The block must be filed under the hash. Later entries of the run move up, so no tombstones build up.
    void erase(std::uint64_t hash, BlockIndex block) {
        std::uint64_t hole = hash & mask_;
        while (entries_[hole].block != block) {
            KVFIX_STEP();
            hole = (hole + 1) & mask_;
        }
        for (std::uint64_t at = (hole + 1) & mask_; entries_[at].block != kNone; at = (at + 1) & mask_) {
            KVFIX_STEP();
            const std::uint64_t home = entries_[at].tag & mask_;
            if (((at - home) & mask_) >= ((at - hole) & mask_)) {
                entries_[hole] = entries_[at];
                hole = at;
            }
        }
        entries_[hole].block = kNone;
    }

  private:
    // The low half of the hash. It also gives an entry's home, because the table has at most 2^32 entries.
    static std::uint32_t tag(std::uint64_t hash) { return static_cast<std::uint32_t>(hash); }

    struct Entry {
        std::uint32_t tag;
        BlockIndex block;
    };

    std::uint64_t mask_;
    std::vector<Entry> entries_;
};

}  // namespace kvfix
