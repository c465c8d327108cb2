// The floor: the least that a prefix-caching block manager can do for a workload, on one thread and without bindings.
// It hashes every full block (XXH3, chained through its parent), looks it up in a std::unordered_map and compares its
// tokens. It counts blocks and keeps a free list in LRU order. There are no events, statistics, locks, windows,
// priorities or transfers. The time is taken in here, so that the floor does not pay for calls from Python.
//
// bench/floor.py compiles this file and calls `floor_run` through ctypes.
#include <malloc.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <unordered_map>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace {

using Token = std::int32_t;
using Tokens = std::span<const Token>;
using Hash = std::uint64_t;
using Slot = std::int32_t;

constexpr Slot none = -1;

Hash chained(Hash parent, Tokens block) { return XXH3_64bits_withSeed(block.data(), block.size_bytes(), parent); }

std::int64_t now_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

class Index {
  public:
    explicit Index(std::size_t slots) { slot_of_.reserve(2 * slots); }

    Slot find(Hash hash) const {
        const auto found = slot_of_.find(hash);
        return found == slot_of_.end() ? none : found->second;
    }
    void insert(Hash hash, Slot slot) { slot_of_.emplace(hash, slot); }
    void erase(Hash hash, Slot slot) {
        const auto found = slot_of_.find(hash);
        if (found != slot_of_.end() && found->second == slot) slot_of_.erase(found);
    }

  private:
    struct Identity {
        std::size_t operator()(Hash hash) const { return hash; }
    };
    std::unordered_map<Hash, Slot, Identity> slot_of_;
};

// The free slots of a tier, in the order in which they were freed. A slot that still holds a block keeps its hash.
class Lru {
  public:
    struct Entry {
        Hash hash = 0;
        Slot previous = none;
        Slot next = none;
        std::int32_t owners = 0;
        bool holds_block = false;
    };

    explicit Lru(std::size_t slots) : entries_(slots + 1), end_(static_cast<Slot>(slots)) {
        at(end_).previous = at(end_).next = end_;
        for (Slot slot = 0; slot < end_; ++slot) push(slot);
    }

    Entry& at(Slot slot) { return entries_[static_cast<std::size_t>(slot)]; }
    Slot oldest() const { return entries_[static_cast<std::size_t>(end_)].next; }
    bool empty() const { return oldest() == end_; }

    void push(Slot slot) {
        Entry& entry = at(slot);
        entry.previous = at(end_).previous;
        entry.next = end_;
        at(entry.previous).next = slot;
        at(end_).previous = slot;
    }
    void unlink(Slot slot) {
        const Entry& entry = at(slot);
        at(entry.previous).next = entry.next;
        at(entry.next).previous = entry.previous;
    }

  private:
    std::vector<Entry> entries_;  // the last entry is both ends of the list
    Slot end_;
};

// The host tier. Every completed block is stored at once, and a prefix that primary misses continues here. Copies cost
// nothing.
class HostTier {
  public:
    explicit HostTier(std::size_t slots) : index_(slots), lru_(slots) {}

    bool load(Hash hash) {
        const Slot slot = index_.find(hash);
        if (slot == none) return false;
        refresh(slot);
        return true;
    }
    void store(Hash hash) {
        if (load(hash)) return;
        const Slot slot = lru_.oldest();
        Lru::Entry& entry = lru_.at(slot);
        if (entry.holds_block) index_.erase(entry.hash, slot);
        entry.hash = hash;
        entry.holds_block = true;
        index_.insert(hash, slot);
        refresh(slot);
    }

  private:
    void refresh(Slot slot) {
        lru_.unlink(slot);
        lru_.push(slot);
    }

    Index index_;
    Lru lru_;
};

// `Verify` compares a found block's tokens, as the reference row does. The two-tier floor trusts its hashes.
template <bool Verify>
class Floor {
  public:
    Floor(std::size_t tokens_per_block, std::size_t slots, HostTier* host)
        : tokens_per_block_(tokens_per_block), index_(slots), lru_(slots), host_(host) {
        if (Verify) contents_.resize(slots * tokens_per_block);
    }

    std::size_t admit(int request_id, Tokens prompt) {
        Sequence& sequence = live_[request_id];
        sequence.tokens.assign(prompt.begin(), prompt.end());
        hash_blocks(prompt);
        const std::size_t matched = match(sequence, prompt);
        for (const Slot slot : sequence.slots) {
            if (lru_.at(slot).owners++ == 0) lru_.unlink(slot);
        }
        const std::size_t reusable = (prompt.size() - 1) / tokens_per_block_;
        std::size_t reused = matched;
        while (host_ != nullptr && reused < reusable && host_->load(hashes_[reused])) ++reused;
        const std::size_t blocks = (prompt.size() + tokens_per_block_ - 1) / tokens_per_block_;
        for (std::size_t block = matched; block < blocks; ++block) {
            const Slot slot = take_slot();
            if (block < hashes_.size()) {
                commit(slot, hashes_[block], block_of(prompt, block));
                if (host_ != nullptr && block >= reused) host_->store(hashes_[block]);
            }
            sequence.slots.push_back(slot);
        }
        sequence.last_hash = hashes_.empty() ? 0 : hashes_.back();
        return reused * tokens_per_block_;
    }

    void append(int request_id, Token token) {
        Sequence& sequence = live_.find(request_id)->second;
        if (sequence.tokens.size() % tokens_per_block_ == 0) sequence.slots.push_back(take_slot());
        sequence.tokens.push_back(token);
        if (sequence.tokens.size() % tokens_per_block_ != 0) return;
        const Tokens block = Tokens(sequence.tokens).last(tokens_per_block_);
        sequence.last_hash = chained(sequence.last_hash, block);
        commit(sequence.slots.back(), sequence.last_hash, block);
        if (host_ != nullptr) host_->store(sequence.last_hash);
    }

    void finish(int request_id) {
        const auto found = live_.find(request_id);
        const std::vector<Slot>& slots = found->second.slots;
        for (auto slot = slots.rbegin(); slot != slots.rend(); ++slot) {
            if (--lru_.at(*slot).owners == 0) lru_.push(*slot);
        }
        live_.erase(found);
    }

  private:
    struct Sequence {
        std::vector<Token> tokens;
        std::vector<Slot> slots;
        Hash last_hash = 0;
    };

    Tokens block_of(Tokens tokens, std::size_t block) const {
        return tokens.subspan(block * tokens_per_block_, tokens_per_block_);
    }

    void hash_blocks(Tokens prompt) {
        hashes_.resize(prompt.size() / tokens_per_block_);
        Hash hash = 0;
        for (std::size_t block = 0; block < hashes_.size(); ++block) {
            hashes_[block] = hash = chained(hash, block_of(prompt, block));
        }
    }

    std::size_t match(Sequence& sequence, Tokens prompt) {
        const std::size_t reusable = (prompt.size() - 1) / tokens_per_block_;
        sequence.slots.reserve(prompt.size() / tokens_per_block_ + 16);
        for (std::size_t block = 0; block < reusable; ++block) {
            const Slot slot = index_.find(hashes_[block]);
            if (slot == none || !has_content(slot, block_of(prompt, block))) return block;
            sequence.slots.push_back(slot);
        }
        return reusable;
    }

    bool has_content(Slot slot, Tokens block) const {
        if (!Verify) return true;
        const Token* content = &contents_[static_cast<std::size_t>(slot) * tokens_per_block_];
        return std::memcmp(content, block.data(), block.size_bytes()) == 0;
    }

    Slot take_slot() {
        if (lru_.empty()) std::abort();  // the workload's pool is smaller than one wave
        const Slot slot = lru_.oldest();
        lru_.unlink(slot);
        Lru::Entry& entry = lru_.at(slot);
        if (entry.holds_block) index_.erase(entry.hash, slot);
        entry.holds_block = false;
        entry.owners = 1;
        return slot;
    }

    void commit(Slot slot, Hash hash, Tokens block) {
        Lru::Entry& entry = lru_.at(slot);
        entry.hash = hash;
        entry.holds_block = true;
        if (Verify) {
            Token* content = &contents_[static_cast<std::size_t>(slot) * tokens_per_block_];
            std::memcpy(content, block.data(), block.size_bytes());
        }
        index_.insert(hash, slot);
    }

    std::size_t tokens_per_block_;
    Index index_;
    Lru lru_;
    HostTier* host_;
    std::vector<Token> contents_;
    std::vector<Hash> hashes_;
    std::unordered_map<int, Sequence> live_;
};

// Reads a flattened workload (bench/workloads.py) from front to back.
class Stream {
  public:
    explicit Stream(Tokens values) : rest_(values) {}

    bool at_end() const { return rest_.empty(); }
    std::size_t number() { return static_cast<std::size_t>(take(1).front()); }
    Tokens take(std::size_t count) {
        const Tokens taken = rest_.first(count);
        rest_ = rest_.subspan(count);
        return taken;
    }

  private:
    Tokens rest_;
};

template <bool Verify>
std::size_t run(Stream stream, Floor<Verify>& floor, std::int64_t* admit_ns, std::int64_t* step_ns,
                std::int64_t* finish_ns) {
    std::size_t tokens_reused = 0;
    int request_id_first = 0;
    std::vector<Tokens> prompts;
    while (!stream.at_end()) {
        const std::size_t requests = stream.number();
        const std::size_t steps = stream.number();
        const bool timed = stream.number() != 0;
        prompts.clear();
        for (std::size_t row = 0; row < requests; ++row) prompts.push_back(stream.take(stream.number()));
        const Tokens answers = stream.take(requests * steps);

        std::size_t reused = 0;
        const std::int64_t admit_from = now_ns();
        for (std::size_t row = 0; row < requests; ++row) {
            reused += floor.admit(request_id_first + static_cast<int>(row), prompts[row]);
        }
        const std::int64_t admitted = now_ns();
        for (std::size_t step = 0; step < steps; ++step) {
            const std::int64_t step_from = now_ns();
            for (std::size_t row = 0; row < requests; ++row) {
                floor.append(request_id_first + static_cast<int>(row), answers[row * steps + step]);
            }
            *step_ns++ = now_ns() - step_from;
        }
        const std::int64_t finish_from = now_ns();
        for (std::size_t row = 0; row < requests; ++row) floor.finish(request_id_first + static_cast<int>(row));
        const std::int64_t finished = now_ns();
        request_id_first += static_cast<int>(requests);
        if (!timed) continue;
        tokens_reused += reused;
        *admit_ns++ = admitted - admit_from;
        *finish_ns++ = finished - finish_from;
    }
    return tokens_reused;
}

// Without this, freed token buffers go back to the kernel and are faulted in again. It applies to the whole process, so
// also to whatever is measured beside the floor.
__attribute__((constructor)) void keep_freed_memory() {
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

}  // namespace

// Fills admit_ns and finish_ns for each timed wave, and step_ns for each step. Returns the prompt tokens reused. With
// slots_host the two-tier floor runs, which does not compare tokens.
extern "C" std::size_t floor_run(const Token* values, std::size_t count, std::size_t tokens_per_block,
                                 std::size_t slots, std::size_t slots_host, std::int64_t* admit_ns,
                                 std::int64_t* step_ns, std::int64_t* finish_ns) {
    const Stream stream(Tokens(values, count));
    if (slots_host == 0) {
        Floor<true> floor(tokens_per_block, slots, nullptr);
        return run(stream, floor, admit_ns, step_ns, finish_ns);
    }
    HostTier host(slots_host);
    Floor<false> floor(tokens_per_block, slots, &host);
    return run(stream, floor, admit_ns, step_ns, finish_ns);
}
