// The bound manager: records each call, marshals it, and leaves the rest to the books.
#pragma once

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>
#include <nanobind/trampoline.h>

#include "pools.h"
#include "recorder.h"
#include "stats.h"

namespace bound {

// There is a class for each era, because Python must see which names an era has.
template <class E>
struct Generic : Request {
    // Attributes that only Python looks at.
    std::map<std::string, nb::object> kept;
};
template <class E>
struct Llm : Generic<E> {};
template <class E>
struct Key : BlockKey {};
template <class E>
struct Summary {
    int reusable_blocks_allocated = 0;
    int reusable_blocks_all = 0;
    std::optional<Key<E>> first_new_block;
};

template <class E>
struct Connector {
    virtual ~Connector() = default;
    virtual int get_num_new_matched_tokens(const Llm<E>& request, int num_computed_tokens) = 0;
};

template <class E>
struct PyConnector : Connector<E> {
    NB_TRAMPOLINE(Connector<E>, 1);

    // As in the reference, the binding hands Python a copy: a new object of the base class, without anything that a
    // subclass or an assignment added.
    int get_num_new_matched_tokens(const Llm<E>& request, int num_computed_tokens) override {
        NB_OVERRIDE_PURE_NAME("get_num_new_matched_tokens", get_num_new_matched_tokens, request, num_computed_tokens);
    }
};

struct CacheBlockIds : std::vector<std::vector<int>> {
    using std::vector<std::vector<int>>::vector;
};

struct EventManager {
    std::size_t max_entries = 0;
};

// The functions that neither take nor return a class of an era, so they are compiled once.
class Core {
  public:
    Core(Config config, Rules& rules) : books(std::move(config), rules), pools(books) {}

    void allocate_pools(bool use_uvm);
    void release_pools();
    void start_scheduling();
    void add_token(RequestId id);
    void add_token_late(RequestId id, bool detach);
    void pin_blocks(RequestId id);
    void unpin_blocks(const std::variant<int, std::vector<int>>& which);
    void rewind(RequestId id, int tokens);
    void scheduling_remove(RequestId id);
    bool scheduling_has_free(int blocks, int window);
    int copy_offsets(const nb::ndarray<>& table, int row, RequestId id);
    int copy_offsets_late(const nb::ndarray<>& table, int row, RequestId id, bool cyclic, bool context);
    void copy_batch(const nb::ndarray<>& table, const std::vector<RequestId>& ids, int beams, int offset);
    void copy_batch_late(const nb::ndarray<>& table, const std::vector<RequestId>& ids, int beams, int offset,
                         bool cyclic, bool context);
    void offsets_of_batch(const nb::ndarray<>& table, int first, int count, int beams);
    CacheBlockIds block_ids(RequestId id, int window);
    std::vector<CacheBlockIds> batch_block_ids(const std::vector<RequestId>& ids, int window);
    std::vector<int> latest_events(std::optional<double> timeout_ms);
    void flush_events();
    void sync_transfers();
    void refresh_blocks();
    void reset_reuse();
    int last_block_id(RequestId id);
    int priority_by_block(int block, int window);
    int token_count(RequestId id);
    CacheStats stats();
    std::map<int, IterationStats> iteration_stats();
    nb::object pool_pointers();
    nb::object scale_pool_pointers();
    nb::object layer_mapping();
    nb::object primary_pool_data(int layer);
    nb::object unique_primary_pool();
    nb::object no_such_pool();
    nb::object no_such_layer(int layer);

    std::vector<std::tuple<std::string, int, int, int, std::vector<Token>>> witness_transfers();
    int witness_free(int window);

    int tokens_per_block() const { return books.config().tokens_per_block; }
    int max_num_blocks() const;
    int num_pools() const { return int(pools.shapes().size()); }
    int max_blocks_per_seq() const { return books.max_blocks_per_seq(); }
    bool reuse() const { return books.config().reuse; }
    bool cross() const { return books.config().cache_type == CacheType::CROSS; }
    bool variable_window() const { return books.variable_window(); }

    Books books;
    Pools pools;
    Recorder calls;

  private:
    CacheCounts seen_;
};

template <class E>
class Base : public Core {
  public:
    using Core::Core;
    using Pinned = std::variant<std::monostate, int, std::vector<int>>;

    Query query() const {
        if (!connector) return {};
        return [this](const Request& request, int computed) {
            return connector->get_num_new_matched_tokens(static_cast<const Llm<E>&>(request), computed);
        };
    }

    void add_sequence(RequestId id, int input_length, int beams, Llm<E>& request) {
        calls.note("add_sequence", id, input_length, beams, request);
        books.add({id, input_length, beams, &request}, query());
    }

    void add_sequence_batch(const nb::list& infos, const nb::list& requests) {
        std::vector<Admission> batch;
        for (std::size_t i = 0; i < nb::len(infos); ++i) {
            const auto info = nb::cast<nb::tuple>(infos[i]);
            batch.push_back({nb::cast<RequestId>(info[0]), nb::cast<int>(info[1]), nb::cast<int>(info[2]),
                             &nb::cast<Llm<E>&>(requests[i])});
        }
        calls.note("add_sequence_batch", batch);
        const nb::gil_scoped_release release;
        books.add_batch(batch, query());
    }

    std::optional<int> remove_sequence(RequestId id, const Llm<E>& request, bool pin_on_release) {
        calls.note("remove_sequence", id, request, pin_on_release);
        books.remove(id, request);
        // The release drops the id of what it stored, so nobody ever sees one.
        return std::nullopt;
    }

    void store_context_blocks(const Llm<E>& request) {
        calls.note("store_context_blocks", request);
        books.store_context(request);
    }

    void store_new_block(const Llm<E>& request) {
        calls.note("store_new_block", request);
        books.store_new_block(request);
    }

    Pinned store_blocks_for_reuse(RequestId id, const Llm<E>& request, bool pin) {
        calls.note("store_blocks_for_reuse", id, request, pin);
        const std::vector<int> ids = books.store_for_reuse(id, request, pin);
        if (books.rules().pins_by_list()) return pin ? ids : std::vector<int>{};
        if (ids.empty()) return std::monostate{};
        return ids.back();
    }

    std::optional<Key<E>> find_new_context_block(const Tokens& unique_tokens, const Llm<E>& request) {
        calls.note("find_new_context_block", unique_tokens, request);
        return as_key(books.find_new_block(unique_tokens, request));
    }

    int count_reusable_blocks(const Tokens& unique_tokens, const Llm<E>& request, bool only_allocated) {
        calls.note("count_reusable_blocks", unique_tokens, request, only_allocated);
        return books.count_reusable(unique_tokens, request, only_allocated);
    }

    Summary<E> analyze_prefix_reuse(const Tokens& unique_tokens, const Llm<E>& request) {
        calls.note("analyze_prefix_reuse", unique_tokens, request);
        PrefixSummary found = books.analyze(unique_tokens, request);
        return {found.allocated, found.all, as_key(std::move(found.first_new))};
    }

    int needed_one_step(const Llm<E>& request, bool two_steps, int window) {
        calls.note("get_needed_blocks_one_step", request, two_steps, window);
        return books.needed_one_step(request, two_steps, window);
    }

    int needed_one_step_late(const Llm<E>& request, bool two_steps, int window, std::optional<Summary<E>>) {
        return needed_one_step(request, two_steps, window);
    }

    int remaining(const Llm<E>& request, int window) {
        calls.note("get_remaining_blocks_to_completion", request, window);
        return books.remaining_to_completion(request, window);
    }

    int remaining_late(const Llm<E>& request, int window, std::optional<Summary<E>>) {
        return remaining(request, window);
    }

    std::shared_ptr<Connector<E>> connector;
    std::shared_ptr<EventManager> events;

  private:
    static std::optional<Key<E>> as_key(std::optional<BlockKey> key) {
        if (!key) return std::nullopt;
        return Key<E>{std::move(*key)};
    }
};

template <class E>
class Manager : public Base<E> {
  public:
    using Base<E>::Base;
};

template <class E>
void bind_request(nb::module_& module);
template <class E>
void bind_manager(nb::module_& module);
template <class E>
void bind_schedulers(nb::module_& module);

// Names that every era shares, declared once and put into each era's module.
void bind_shared(nb::module_& top);
void share(nb::module_& top, nb::module_& era);
void bind_launch(nb::module_& top);

}  // namespace bound

NB_MAKE_OPAQUE(bound::CacheBlockIds);
