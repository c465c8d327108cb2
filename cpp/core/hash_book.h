// The 128-bit hashes of one tree's full blocks, for callers that want to see them or find blocks by them. Matching does
// not need them, so the first such call opens the book, and it costs nothing before.
#pragma once

#include <cstdint>
#include <vector>

#include "core/block_hash.h"
#include "core/hash_index.h"
#include "core/index_hash.h"
#include "core/types.h"

namespace kvfix {

class HashBook {
  public:
    explicit HashBook(std::uint32_t blocks) : hashes_(blocks), index_(blocks) {}

    const BlockHash& operator[](BlockIndex block) const { return hashes_[number(block)]; }
    void enter(BlockIndex block, const BlockHash& hash, const BlockHasher& hasher, const IndexHash& index_hash) {
        hashes_[number(block)] = hash;
        index_.insert(place(hasher.shown(hash), index_hash), block);
    }
    void leave(BlockIndex block, const BlockHasher& hasher, const IndexHash& index_hash) {
        index_.erase(place(hasher.shown((*this)[block]), index_hash), block);
    }
    // The only block that shows this hash, or kNone if none or several do.
    BlockIndex find_unambiguous(const BlockHash& hash, const BlockHasher& hasher, const IndexHash& index_hash) const {
        BlockIndex only = kNone;
        std::uint32_t found = 0;
        index_.find(place(hash, index_hash), [&](BlockIndex block) {
            if (hasher.shown((*this)[block]) == hash && found++ == 0) {
                only = block;
            }
            return found > 1;
        });
        return found == 1 ? only : kNone;
    }

  private:
    // Events show the hashes, so another secret chooses where they are filed. Otherwise callers could store blocks
    // until a long row of neighbours had to be searched.
    static std::uint64_t place(const BlockHash& hash, const IndexHash& index_hash) {
        return IndexHash::scattered(index_hash.block_hash(hash));
    }

    std::vector<BlockHash> hashes_;
    HashIndex index_;
};

}  // namespace kvfix
