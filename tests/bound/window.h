// The books of one attention window: the slots of two tiers, the tree of what is cached, and the queues of what may go.
#pragma once

#include <list>
#include <map>
#include <set>

#include "eras.h"
#include "request.h"

namespace bound {

struct Block {
    int id = 0;
    // The id stays. Tier and slot change when a block is offloaded or brought back.
    bool host = false;
    int slot = 0;
    int refs = 0;
    int scheduling_refs = 0;
    int priority = kDefaultPriority;
    bool queued = false;
    std::list<Block*>::iterator place;
    BlockKey key;
    bool full = false;
    // How many of its tokens a forward pass has really computed.
    int computed = 0;
    Block* parent = nullptr;
    std::map<BlockKey, Block*> next;
    std::optional<RequestId> taken_by;
};

struct Transfer {
    const char* kind;
    int window;
    int source;
    int target;
    std::vector<Token> tokens;
};

struct Match {
    Block* block = nullptr;
    int tokens = 0;
    bool partial = false;
};

// What one sequence holds in one window.
struct Held {
    std::vector<std::vector<Block*>> beams;
    int front_removed = 0;
    int matched = 0;
    int partly_computed = 0;
    bool valid = true;
    std::vector<Match> claimed;
};

struct WindowOptions {
    int tokens_per_block = 0;
    bool onboard = true;
    bool partial_reuse = true;
    bool copy_on_partial_reuse = true;
    int offload_from_priority = kOffloadFromPriority;
};

class Window {
  public:
    Window(int size, int primary, int host, bool sliding, const WindowOptions& options, const Rules& rules);
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;

    // One by one: each block is matched, claimed and given a slot before the next one is considered.
    void admit(RequestId id, Held& held, const std::vector<BlockKey>& keys, int blocks, const Request* request);
    // In two phases: claim first, for all requests of a batch, and then allocate.
    void claim_prefix(Held& held, const std::vector<BlockKey>& keys, int blocks);
    void admit_claimed(RequestId id, Held& held, const std::vector<BlockKey>& keys, int blocks, const Request* request);
    void admit_without_reuse(RequestId id, Held& held, int blocks, bool share_last);

    void grow(RequestId id, Held& held, int num_tokens);
    void shrink(Held& held, int num_tokens);
    void release_all(Held& held);
    void note_computed(Held& held, int computed);

    std::vector<int> store(const std::vector<BlockKey>& keys, const std::vector<Block*>& blocks, bool pin);
    void pin(const Held& held);
    void unpin_chain(int id);
    void unpin(int id);
    void forget_all();

    std::vector<Block*> walk(const std::vector<BlockKey>& keys) const;
    void start_scheduling(const std::vector<const Held*>& living);
    void scheduling_release(const Held& held);

    int free_blocks() const { return queued_[0]; }
    int free_host_blocks() const { return queued_[1]; }
    int size() const { return size_; }
    int primary() const { return primary_; }
    int host() const { return host_; }
    bool sliding() const { return sliding_; }
    const Block* block(int id) const;
    const Block& root() const { return root_; }

    int scheduling_free = 0;
    CacheCounts counts;
    int offloaded = 0;
    int onboarded = 0;
    int copied = 0;
    std::vector<Transfer> transfers;
    // Requests whose blocks went to somebody else before they were stored.
    std::set<RequestId> robbed;

  private:
    Match find(Block& from, const BlockKey& key) const;
    Block& take_free(int priority, std::optional<RequestId> owner);
    void claim(Block& block);
    void release(Block& block, bool to_front = false);
    void enqueue(Block& block, bool to_front = false);
    void dequeue(Block& block);
    void unlink(Block& block);
    void swap_places(Block& one, Block& other);
    void bring_back(Block& block);
    Block& settle_partial(RequestId id, Held& held, const Match& match, const BlockKey& key);
    void place_match(RequestId id, Held& held, const Match& match, const BlockKey& key, std::optional<int> priority);
    void add_block(RequestId id, Held& held, bool shared, int priority);
    void record(const char* kind, int source, int target, const BlockKey& key, int tokens);

    int size_;
    int primary_;
    int host_;
    bool sliding_;
    WindowOptions options_;
    const Rules& rules_;
    std::vector<Block> blocks_;
    Block root_;
    std::map<int, std::list<Block*>> queues_[2];
    int queued_[2] = {0, 0};
};

}  // namespace bound
