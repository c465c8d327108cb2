// A small server, drawn from a seed: scheduler, engine, copy engine, remote readers and careless callers around one
// manager. It knows docs/block-manager.md and the manager's public calls, but not how the manager or its models work
// inside. It throws Broken when a promise does not hold.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fuzz/world/memory.h"
#include "fuzz/world/mirror.h"
#include "fuzz/world/port.h"
#include "fuzz/world/prompts.h"
#include "fuzz/world/random.h"

namespace kvfix::world {

struct Tally {
    std::uint64_t steps = 0;
    std::uint64_t admitted = 0;
    std::uint64_t deferred = 0;
    std::uint64_t refused = 0;
    std::uint64_t promises = 0;  // analyze_prefix_reuse results compared with what was reused
    std::uint64_t asked_again = 0;
    std::uint64_t chunks = 0;  // later chunks, whose room was promised
    std::uint64_t cells = 0;   // how many were compared
    std::uint64_t copies = 0;
    std::uint64_t tickets_failed = 0;
    std::uint64_t pins = 0;
    std::uint64_t suspended = 0;
    std::uint64_t events = 0;
    std::uint64_t evictions = 0;  // compared with the blocks that had to go

    void add(const Tally& other);
};

class World {
  public:
    explicit World(std::uint64_t seed);

    void step();
    // Ends everything. Then every slot must be free.
    void wind_up();
    const Tally& tally() const { return tally_; }
    // Called with a line about each call, to help find the cause of a failure.
    void on_call(std::function<void(const std::string&)> told) { told_ = std::move(told); }

  private:
    struct Held {
        std::uint32_t beam;
        std::uint32_t block;  // the number in the sequence
        Place place;
        BlockId id;
    };
    struct Pin {
        BlockId id;
        Place place;
        auto operator<=>(const Pin&) const = default;
    };
    // A suspended request, with the blocks that it held, and those of them that nobody else can find.
    struct Away {
        Live live;
        std::set<BlockId> blocks;
        std::set<BlockId> sure_private;
        bool lost = false;
    };
    struct Ask {
        RequestPtr request;
        Prompt prompt;
        std::uint32_t chunk = ~0U;  // tokens of a prompt that are reserved at a time
    };
    struct Growth {
        std::vector<Live*> grown;
        std::vector<std::uint32_t> counts;
        std::optional<std::vector<std::uint32_t>> computed = std::nullopt;
        bool decodes = false;  // as the batch that was made last
    };
    // The blocks that growth takes in a window, and whether there must be room for them, or may be.
    struct Promise {
        std::uint64_t needed = 0;
        bool must_fit = false;
        bool may_fit = false;
    };

    template <class What>
    void tell(What&& what) const {
        if (told_) {
            told_(what());
        }
    }
    std::uint32_t block_tokens() const { return twins_.config().tokens_per_block; }
    std::uint32_t window_tokens(std::size_t window) const {
        return twins_.config().windows[window].window_size.value_or(~0U);
    }
    std::size_t windows() const { return twins_.config().windows.size(); }
    Live* any_live();
    // Whether nothing is on its way into or between the tiers, so that every block in the tree can be used.
    bool all_settled() const { return !queued_ && memory_.flights().empty(); }
    std::vector<std::uint64_t> allocatable();
    std::uint32_t analyze(const RequestPtr& request, std::optional<std::uint32_t> chunk = std::nullopt);

    // world_requests.cc
    Ask request_for(Prompt prompt);
    void admit();
    void expect_refusal(const Refused& refused, const std::vector<Ask>& batch,
                        const std::vector<std::uint64_t>& room) const;
    void expect_batch(const BatchAdmission& answer, const std::vector<Ask>& batch,
                      const std::vector<std::uint32_t>& promised, std::optional<std::uint64_t> budget);
    void expect_deferral(const std::vector<Ask>& batch, const std::vector<std::uint32_t>& promised,
                         std::uint64_t budget, std::size_t count, std::uint64_t computed) const;
    void expect_admission(const Admission& admission, const Ask& ask, std::uint32_t promised, bool alone);
    void begin(const Admission& admission, const Ask& ask);
    void make_room();
    void remove();
    void expect_found_again(const Live& gone, std::uint32_t stored);

    // world_waiting.cc
    void ask();
    Ask next_ask(std::uint32_t longest);

    // world_growth.cc
    void grow();
    void decode();
    void make_decode_batch(const std::vector<RequestId>& ids);
    void prefill();
    void add_tokens(Growth growth);
    void note_growth(const Growth& growth, const std::vector<std::vector<TokenId>>& tokens_of, bool with_tokens);
    Promise room_for(const Growth& growth);
    Live* any_unfinished();
    Live* unfinished(RequestId id);
    std::uint64_t blocks_over(const Live& live, std::uint32_t length) const;
    bool in_promise(const Live& live, std::uint32_t count, std::uint32_t told) const;
    bool growth_is_legal(const Growth& growth, bool with_tokens) const;
    void rewind();
    void store_context();
    std::uint32_t reported(const Live& live);
    void leave_windows(Live& live, std::uint32_t computed) const;

    // world_names.cc
    void name_blocks();
    void truncate();

    // world_preempt.cc
    Away* any_suspended();
    void suspend();
    void resume();
    void remove_suspended();
    void misuse_suspended();
    void note_lost(const Flight& flight, std::set<RequestId>& named);

    // world_engine.cc
    std::vector<Held> held_by(const Live& live);
    void expect_table(const Live& live, const std::vector<Held>& held) const;
    void run_step();
    void take();
    void compute(Live& live);
    void verify(const Live& live);
    void verify_all();
    void end_ticket();
    void settle();
    void end(Ticket ticket, bool fail);
    void note_spoiled(Live& live, const Flight& flight);

    // world_pins.cc
    void pin_something();
    void pin_request();
    void pin_ids();
    std::vector<BlockHash> hashes_of(const Request& request) const;
    void unpin();
    void remember_pin(BlockId id, const Place& place);
    void remember_pins(const std::vector<BlockId>& pinned, const std::vector<Held>& held, bool pin);
    void forget_pins(const std::vector<Pin>& ended);

    // world_books.cc
    void read_events();
    void expect_matches_mirror();
    void expect_tiers(const RequestPtr& request, std::span<const BlockHash> found);
    void expect_conserved();
    void pass_time();
    // The call must raise, and change nothing.
    void refused(const char* what, const std::function<void(BlockManager&)>& call);
    void misuse();
    void misuse_growth(const Live* live, RequestId stranger);
    void misuse_tables(RequestId id);

    Random random_;
    Twins twins_;
    Memory memory_;
    BlockHasher hasher_;  // the same as the manager's
    Mirror mirror_;
    PromptSource source_;
    const std::uint32_t patience_;  // how seldom tickets end; 0: each ends with the call that queued it
    const bool pins_nothing_;       // so that nothing disturbs the slots that are kept for chunks
    std::vector<Ask> waiting_;      // requests that were asked about and are not admitted yet
    std::map<RequestId, Live> live_;
    std::map<RequestId, Away> suspended_;
    RequestId last_ = 0;                                         // the request that the last call was about
    std::map<const BlockManager*, grow::DecodeBatch> decoding_;  // the batch that was made last, in each manager
    std::vector<Pin> pins_;
    std::map<BlockId, std::size_t> ids_seen_;  // block ids, and the window of each
    bool queued_ = false;                      // transfers may wait that were not taken yet
    std::uint64_t onboards_promised_ = 0;
    std::uint32_t writers_ = 0;
    std::int64_t now_ms_ = 0;
    std::function<void(const std::string&)> told_;
    Tally tally_;
};

}  // namespace kvfix::world
