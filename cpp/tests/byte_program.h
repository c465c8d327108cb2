// Bytes as a program: first which manager, then which calls, odd arguments included. The program plays every role
// around the manager (scheduler, copy engine, remote reader) with memory of its own. It throws BrokenPromise if the
// manager and that memory disagree, if a refused call changed the digest, or if something is lost.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "core/block_manager.h"
#include "tests/byte_reader.h"
#include "tests/program_values.h"
#include "tests/shadow_memory.h"

namespace kvfix::testing {

class ByteProgram {
  public:
    explicit ByteProgram(std::span<const std::uint8_t> bytes);

    bool done() const { return bytes_.done(); }
    void step();
    // Ends every transfer, pin and sequence and forgets the tree. Afterwards every slot must be free.
    void wind_up();

    std::uint64_t digest() { return manager_.digest(); }
    KvCacheStats stats() const { return manager_.get_kv_cache_stats(); }

  private:
    // One block of a sequence. A block that beams share appears once for each beam.
    struct Held {
        Place place;
        BlockId id;
        std::uint32_t token_begin;
        bool is_written;  // all of it is of the prompt and computed, so its bytes stay
    };
    struct Pinned {
        BlockId id;
        Place place;
    };

    // Makes the call. Returns false if it was refused as documented; then the digest must be the same as before.
    bool attempt(const std::function<void()>& call);
    RequestId any_request();
    // The part of a request that the engine claims to have computed: mostly everything that it has, sometimes less, and
    // rarely more than is possible.
    std::uint32_t reported(RequestId id);
    BlockId any_block();

    // byte_program.cc
    void admit();
    void make_room();
    void expect_admitted(const BatchAdmission& result, std::span<OwnedSequence> batch,
                         std::optional<std::uint64_t> budget);
    void grow();
    void rewind();
    void store_context();
    void remove();

    // byte_program_names.cc
    void name_blocks();
    void truncate();

    // byte_program_preempt.cc
    void suspend();
    void resume();
    void remove_suspended();
    void misuse_suspended();
    std::map<RequestId, OwnedSequence>::iterator any_suspended();
    void note_hurt(RequestId id);

    // byte_program_engine.cc
    void end_ticket();
    // One engine step: takes the copies that wait, then computes every position that is not computed yet.
    void run_copies_and_compute();
    void compute(OwnedSequence& sequence);
    void complete(Ticket ticket);
    void verify(const OwnedSequence& sequence);
    std::vector<Held> held_by(const OwnedSequence& sequence);

    // byte_program_calls.cc
    WindowSize any_window();
    void pin_request();
    void pin_ids();
    void unpin();
    void pass_time();
    void read();
    void misuse();
    void remember_pins(std::span<const BlockId> ids, std::span<const Held> held);
    void forget_pin(const Pinned& pinned);

    ByteReader bytes_;
    BlockManager manager_;
    ShadowMemory memory_;
    std::map<RequestId, OwnedSequence> sequences_;
    std::map<RequestId, OwnedSequence> suspended_;
    std::vector<Ticket> tickets_;
    std::vector<Pinned> pins_;
    std::map<BlockId, std::size_t> seen_;  // block ids and the index of their window
    RequestId next_id_ = 1;
    RequestId next_writer_ = 1'000'000'000;  // ids for what resumed sequences write
    std::int64_t now_ms_ = 0;
};

}  // namespace kvfix::testing
