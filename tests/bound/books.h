// The books of one manager: its windows and the sequences that live in them. They know nothing of Python.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "window.h"

namespace bound {

struct TempWindow {
    bool paged_context_fmha = false;
    int max_input_len = 0;
    int max_num_tokens = 0;
};

struct Config {
    std::vector<int> heads_per_layer;
    std::vector<int> head_size_per_layer;
    int tokens_per_block = 0;
    std::map<int, std::tuple<int, int>> blocks_per_window;
    int max_num_sequences = 0;
    int max_beam_width = 1;
    std::vector<int> max_attention_window_vec;
    std::optional<TempWindow> temp_window;
    DataType dtype = DataType::HALF;
    int max_sequence_length = 0;
    bool reuse = false;
    bool onboard = true;
    CacheType cache_type = CacheType::SELF;
    std::optional<int> offload_from_priority;
    bool partial_reuse = true;
    bool copy_on_partial_reuse = true;
};

struct Sequence {
    int beams = 1;
    int num_tokens = 0;
    std::map<int, Held> windows;
};

struct PrefixSummary {
    int allocated = 0;
    int all = 0;
    std::optional<BlockKey> first_new;
};

struct Admission {
    RequestId id;
    int input_length;
    int beams;
    Request* request;
};

// Asks how many more tokens somebody else can load. It may call back into whoever holds the books.
using Query = std::function<int(const Request&, int)>;

class Books {
  public:
    Books(Config config, Rules& rules);

    void add(const Admission& admission, const Query& query);
    void add_batch(const std::vector<Admission>& batch, const Query& query);
    void add_token(RequestId id);
    void rewind(RequestId id, int tokens);
    void remove(RequestId id, const Request& request);
    void store_context(const Request& request);
    void store_new_block(const Request& request);
    std::vector<int> store_for_reuse(RequestId id, const Request& request, bool pin);
    void pin(RequestId id);
    void unpin(const std::vector<int>& ids);
    void unpin_chain(int id);
    void reset_reuse();

    std::optional<BlockKey> find_new_block(const Tokens& tokens, const Request& request) const;
    int count_reusable(const Tokens& tokens, const Request& request, bool only_allocated) const;
    PrefixSummary analyze(const Tokens& tokens, const Request& request) const;

    int needed_one_step(const Request& request, bool two_steps, int window) const;
    int remaining_to_completion(const Request& request, int window) const;
    void start_scheduling();
    bool scheduling_has_free(int blocks, int window) const;
    void scheduling_remove(RequestId id);

    std::vector<std::vector<int>> block_ids(RequestId id, int window) const;
    std::vector<std::vector<int>> slots(RequestId id, int window) const;
    // Calls with (window, beam, place, slot, is in the host tier) for every block.
    using Visitor = std::function<void(int, int, int, int, bool)>;
    void visit(RequestId id, const Visitor& visitor) const;
    int token_count(RequestId id) const;
    int last_block_id(RequestId id) const;
    int priority_of(int block, int window) const;
    CacheCounts counts() const;
    std::vector<Transfer> take_transfers();
    std::vector<std::pair<std::vector<Token>, int>> cached() const;

    const Config& config() const { return config_; }
    Rules& rules() const { return rules_; }
    bool variable_window() const { return windows_.size() > 1; }
    const Window& window(int size) const;
    const std::map<int, std::unique_ptr<Window>>& windows() const { return windows_; }
    int max_blocks_per_seq() const;

  private:
    class Entry;
    friend class Entry;

    Sequence& open(const Admission& admission);
    const Sequence& living(RequestId id) const;
    Sequence& living(RequestId id);
    int context_length(const Window& window, int input_length) const;
    std::vector<BlockKey> keys(const Request& request, const Tokens& tokens, int length, bool partial) const;
    std::vector<BlockKey> keys_to_match(const Request& request, int length) const;
    void settle(const Admission& admission, int matched, int loaded) const;
    void admit(const Admission& admission, const Query& query, Entry& entry);
    int temporary_window(int window) const;
    void note(Sequence& sequence, const Request& request);
    std::vector<int> store(Sequence& sequence, const Request& request, int length, bool partial, bool pin);
    int stored_length(const Request& request) const;
    const Window& only_window() const;

    Config config_;
    Rules& rules_;
    mutable std::mutex mutex_;
    mutable std::atomic<std::thread::id> inside_{};
    std::map<int, std::unique_ptr<Window>> windows_;
    std::map<RequestId, Sequence> sequences_;
};

}  // namespace bound
