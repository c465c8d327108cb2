// What blocks hold, as far as the canary's books know: whom they are of, whether they are complete, and their digests.
// 16 bytes a block, its digests, and 4 bytes a slot.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/types.h"

namespace kvfix::canary {

using Slot = std::int32_t;
inline constexpr Slot kNowhere = -1;  // of a block that a window has passed
inline constexpr Slot kSlotsMax = 1 << 26;

using Requester = std::optional<RequestId>;  // nothing: nobody was seen to fill it, or nobody takes it

inline constexpr std::uint32_t kTokensPerBlockMax = (1 << 12) - 1;

// A block that moves takes its fill along; a slot that is written anew gets another one.
struct Fill {
    RequestId filler = 0;           // the request that computed it, unless nobody was seen to
    std::uint32_t right_at = 0;     // the last step, modulo 2^32, behind which it was seen to be what was filled
    std::uint16_t uses = 0;         // slots that hold it, and looks at it
    std::uint16_t tokens : 12 = 0;  // leading positions that were written
    bool is_by_nobody : 1 = false;
    bool is_complete : 1 = false;
    bool is_known : 1 = false;     // its digests are
    bool has_changed : 1 = false;  // it was seen to be something else

    Requester by() const { return is_by_nobody ? std::nullopt : Requester(filler); }
};
static_assert(sizeof(Fill) == 16);

using FillIndex = std::uint32_t;
inline constexpr FillIndex kNoFill = ~FillIndex{0};

// All fills. One without a use is gone. Memory comes in chunks, so no step pays for moving what is there.
class Fills {
  public:
    explicit Fills(std::uint32_t layers) : layers_(layers) {}

    // The caller puts it into a slot at once.
    FillIndex make(Requester by, std::uint32_t tokens = 0, bool is_complete = false);
    Fill& operator[](FillIndex index) { return chunks_[index / kChunk]->fills[index % kChunk]; }
    const Fill& operator[](FillIndex index) const { return chunks_[index / kChunk]->fills[index % kChunk]; }
    // One for each layer.
    std::span<std::uint64_t> digests(FillIndex index) {
        return {chunks_[index / kChunk]->digests.get() + std::size_t{index % kChunk} * layers_, layers_};
    }
    void use(FillIndex index);
    void leave(FillIndex index);

    std::uint32_t layers() const { return layers_; }
    std::size_t count() const { return count_; }

  private:
    static constexpr FillIndex kChunk = 256;
    struct Chunk {
        std::array<Fill, kChunk> fills;
        std::unique_ptr<std::uint64_t[]> digests;
    };
    void add_chunk();

    std::uint32_t layers_;
    std::vector<std::unique_ptr<Chunk>> chunks_;
    FillIndex free_ = kNoFill;  // the first one, which names the next
    std::size_t count_ = 0;
};

// A use of a fill that is in no slot. No longer than the fills.
class FillUse {
  public:
    FillUse(Fills& fills, FillIndex index) : fills_(&fills), index_(index) { fills.use(index); }
    FillUse(FillUse&& other) noexcept : fills_(std::exchange(other.fills_, nullptr)), index_(other.index_) {}
    FillUse& operator=(FillUse&& other) noexcept {
        std::swap(fills_, other.fills_);
        std::swap(index_, other.index_);
        return *this;
    }
    FillUse(const FillUse&) = delete;
    FillUse& operator=(const FillUse&) = delete;
    ~FillUse() {
        if (fills_ != nullptr) {
            fills_->leave(index_);
        }
    }
    FillIndex index() const { return index_; }

  private:
    Fills* fills_;
    FillIndex index_;
};

// What the slots of a tier hold.
class FilledSlots {
  public:
    explicit FilledSlots(Fills& fills) : fills_(&fills) {}

    // kNoFill: nothing is known of it.
    FillIndex at(Slot slot) const {
        const auto place = static_cast<std::uint32_t>(slot);
        return place < by_slot_.size() ? by_slot_[place] : kNoFill;
    }
    void put(Slot slot, FillIndex fill);
    static std::size_t checked(Slot slot);
    void forget(Slot slot);

  private:
    Fills* fills_;
    std::vector<FillIndex> by_slot_;
};

}  // namespace kvfix::canary
