// Declares the manager of one era, with the names, argument names, defaults and guards of its binding.
#pragma once

#include <nanobind/stl/bind_vector.h>

#include "manager.h"

namespace bound {

using Released = nb::call_guard<nb::gil_scoped_release>;

template <class E>
Config make_config(std::vector<int> heads, std::vector<int> sizes, int tokens_per_block,
                   std::map<int, std::tuple<int, int>> blocks, int max_num_sequences, int max_beam_width,
                   std::vector<int> windows, std::optional<TempWindow> temp, DataType dtype, int max_sequence_length) {
    Config config;
    if (sizes.size() == 1) sizes.assign(heads.size(), sizes[0]);
    check(sizes.size() == heads.size(), "as many head sizes as layers are needed");
    config.heads_per_layer = std::move(heads);
    config.head_size_per_layer = std::move(sizes);
    config.tokens_per_block = tokens_per_block;
    config.blocks_per_window = std::move(blocks);
    config.max_num_sequences = max_num_sequences;
    config.max_beam_width = max_beam_width;
    config.max_attention_window_vec = std::move(windows);
    config.temp_window = std::move(temp);
    config.dtype = dtype;
    config.max_sequence_length = max_sequence_length;
    return config;
}

template <class E>
void build(Manager<E>* self, Config config, bool reuse, bool onboard, CacheType type, std::optional<int> priority,
           std::shared_ptr<EventManager> events, bool partial, bool copy, std::shared_ptr<Connector<E>> connector) {
    config.reuse = reuse;
    config.onboard = onboard;
    config.cache_type = type;
    config.offload_from_priority = priority;
    config.partial_reuse = partial;
    config.copy_on_partial_reuse = copy;
    new (self) Manager<E>(std::move(config), E::rules);
    self->connector = std::move(connector);
    self->events = std::move(events);
}

// Sizes is a list with a size for each layer in S, and one number in the other eras.
template <class E, class Sizes>
void construct(Manager<E>* self, std::vector<int> heads, Sizes sizes, int tokens_per_block,
               std::map<int, std::tuple<int, int>> blocks, int max_num_sequences, int max_beam_width,
               std::vector<int> windows, std::optional<TempWindow> temp, DataType dtype, int, std::int64_t,
               int max_sequence_length, bool reuse, bool onboard, CacheType type, std::optional<int> priority,
               std::shared_ptr<EventManager> events, bool partial, bool copy, std::shared_ptr<Connector<E>> connector,
               bool, int, int) {
    build<E>(self,
             make_config<E>(std::move(heads), std::vector<int>{std::move(sizes)}, tokens_per_block, std::move(blocks),
                            max_num_sequences, max_beam_width, std::move(windows), std::move(temp), dtype,
                            max_sequence_length),
             reuse, onboard, type, priority, std::move(events), partial, copy, std::move(connector));
}

template <class E>
void construct_late(Manager<E>* self, std::vector<int> heads, int size, int tokens_per_block,
                    std::map<int, std::tuple<int, int>> blocks, int max_num_sequences, int max_beam_width,
                    std::vector<int> windows, std::optional<TempWindow> temp, DataType dtype, int, std::int64_t,
                    int max_sequence_length, bool reuse, CacheType type, std::optional<int> priority,
                    std::shared_ptr<EventManager> events, bool partial, bool copy,
                    std::shared_ptr<Connector<E>> connector, bool, int, int, const nb::object& linear, bool) {
    check(linear.is_none(), "linear attention is not modelled");
    build<E>(self,
             make_config<E>(std::move(heads), {size}, tokens_per_block, std::move(blocks), max_num_sequences,
                            max_beam_width, std::move(windows), std::move(temp), dtype, max_sequence_length),
             reuse, true, type, priority, std::move(events), partial, copy, std::move(connector));
}

template <class E>
void declare_constructor(nb::class_<Manager<E>, Base<E>>& cls) {
    const auto common = [&cls](auto function, const char* size, auto... last) {
        cls.def("__init__", function, nb::arg("num_kv_heads_per_layer"), nb::arg(size), nb::arg("tokens_per_block"),
                nb::arg("blocks_per_window"), nb::arg("max_num_sequences"), nb::arg("max_beam_width"),
                nb::arg("max_attention_window_vec"), nb::arg("temp_attention_window_inputs").none(), nb::arg("dtype"),
                nb::arg("sink_token_length"), nb::arg("stream"), nb::arg("max_sequence_length").none(),
                nb::arg("enable_block_reuse") = false, last...);
    };
    const auto usual = [&common](auto function, const char* size) {
        common(function, size, nb::arg("onboard_blocks") = true, nb::arg("cache_type") = CacheType::SELF,
               nb::arg("secondary_offload_min_priority") = nb::none(), nb::arg("event_manager") = nb::none(),
               nb::arg("enable_partial_reuse") = true, nb::arg("copy_on_partial_reuse") = true,
               nb::arg("kv_connector_manager") = nb::none(), nb::arg("enable_indexer_k_cache") = false,
               nb::arg("indexer_k_cache_quant_block_size") = 128, nb::arg("indexer_k_cache_index_head_dim") = 0,
               Released());
    };
    if constexpr (E::is_s) {
        usual(&construct<E, std::vector<int>>, "size_per_head_per_layer");
    } else if constexpr (E::is_late) {
        // This constructor looks at a Python object, so it keeps the GIL.
        common(&construct_late<E>, "size_per_head", nb::arg("cache_type") = CacheType::SELF,
               nb::arg("secondary_offload_min_priority") = nb::none(), nb::arg("event_manager") = nb::none(),
               nb::arg("enable_partial_reuse") = true, nb::arg("copy_on_partial_reuse") = true,
               nb::arg("kv_connector_manager") = nb::none(), nb::arg("enable_indexer_k_cache") = false,
               nb::arg("indexer_k_cache_quant_block_size") = 128, nb::arg("indexer_k_cache_index_head_dim") = 0,
               nb::arg("linear_attention_metadata").none() = nb::none(), nb::arg("swa_context_reuse") = true);
    } else {
        usual(&construct<E, int>, "size_per_head");
    }
}

// Every era declares it without argument names, so it is positional only.
template <class E>
void declare_common(nb::class_<Base<E>>& cls) {
    using B = Base<E>;
    cls.def("allocate_pools", &B::allocate_pools, Released())
        .def("release_pools", &B::release_pools, Released())
        .def("start_scheduling", &B::start_scheduling, Released())
        .def_prop_ro("tokens_per_block", &B::tokens_per_block)
        .def_prop_ro("max_num_blocks", &B::max_num_blocks)
        .def_prop_ro("num_pools", &B::num_pools)
        .def_prop_ro("max_blocks_per_seq", &B::max_blocks_per_seq)
        .def_prop_ro("enable_block_reuse", &B::reuse)
        .def_prop_ro("cross_kv", &B::cross)
        .def("get_kv_cache_stats", &B::stats, Released())
        .def("remove_sequence", &B::remove_sequence, Released())
        .def("pin_blocks", &B::pin_blocks, Released())
        .def("scheduling_remove_sequence", &B::scheduling_remove, Released())
        .def("get_block_pool_pointers", &B::pool_pointers, Released())
        .def("get_block_scale_pool_pointers", &B::scale_pool_pointers, Released())
        .def("get_layer_to_pool_mapping", &B::layer_mapping, Released())
        .def("get_primary_pool_data", &B::primary_pool_data, Released())
        .def("get_indexer_k_cache_pool_data", &B::no_such_layer, Released())
        .def("get_unique_primary_pool", &B::unique_primary_pool, Released())
        .def("get_block_offsets_of_batch", &B::offsets_of_batch, Released())
        .def("get_latest_events", &B::latest_events, nb::arg("timeout_ms") = nb::none(), Released())
        .def("rewind_kv_cache", &B::rewind, Released())
        .def("store_context_blocks", &B::store_context_blocks, Released())
        .def("store_blocks_for_reuse", &B::store_blocks_for_reuse, Released())
        .def("get_cache_block_ids", &B::block_ids, Released())
        .def("get_batch_cache_block_ids", &B::batch_block_ids, Released())
        .def("flush_iteration_events", &B::flush_events, Released())
        .def("get_last_block_id", &B::last_block_id, Released())
        .def("unpin_blocks_by_id", &B::unpin_blocks, Released());
    if constexpr (!E::is_a) {
        cls.def("get_indexer_k_cache_pool", &B::no_such_pool, Released())
            .def("sync_transfer_manager_with_buffer_manager", &B::sync_transfers, Released())
            .def("refresh_blocks", &B::refresh_blocks, Released())
            .def("reset_reuse_state", &B::reset_reuse, Released())
            .def("get_priority_by_block_id", &B::priority_by_block, nb::arg("block_id"), nb::arg("window_size"),
                 Released());
    }
}

template <class E>
void declare_early(nb::class_<Base<E>>& cls) {
    using B = Base<E>;
    cls.def("get_needed_blocks_one_step", &B::needed_one_step, Released())
        .def("get_remaining_blocks_to_completion", &B::remaining, Released())
        .def("add_token", &B::add_token, Released())
        .def("add_sequence", &B::add_sequence, Released())
        .def("copy_block_offsets", &B::copy_offsets, Released())
        .def("copy_batch_block_offsets", &B::copy_batch, Released());
    if constexpr (!E::is_a) {
        cls.def("find_new_context_block", &B::find_new_context_block, nb::arg("unique_tokens"), nb::arg("llm_request"),
                Released());
    }
    if constexpr (E::is_b2) {
        cls.def("count_reusable_blocks", &B::count_reusable_blocks, nb::arg("unique_tokens"), nb::arg("llm_request"),
                nb::arg("only_allocated") = true, Released());
    }
}

template <class E>
void declare_late(nb::class_<Base<E>>& cls) {
    using B = Base<E>;
    cls.def("get_needed_blocks_one_step", &B::needed_one_step_late, nb::arg("req"), nb::arg("two_steps_look_ahead"),
            nb::arg("window_size"), nb::arg("cached_summary") = nb::none(), Released())
        .def("get_remaining_blocks_to_completion", &B::remaining_late, nb::arg("req"), nb::arg("window_size"),
             nb::arg("cached_summary") = nb::none(), Released())
        .def("add_token", &B::add_token_late, nb::arg("request_id"), nb::arg("detach_swa_front_blocks") = true,
             Released())
        .def("get_token_count", &B::token_count, nb::arg("request_id"))
        .def("add_sequence_batch", &B::add_sequence_batch, nb::arg("request_infos"), nb::arg("llm_requests"))
        .def("store_new_block", &B::store_new_block, nb::arg("llm_request"), Released())
        .def("copy_block_offsets", &B::copy_offsets_late, nb::arg("output"), nb::arg("output_slot_offset"),
             nb::arg("request_id"), nb::arg("use_swa_cyclic_slots") = true, nb::arg("use_swa_context_slots") = false,
             Released())
        .def("copy_batch_block_offsets", &B::copy_batch_late, nb::arg("output"), nb::arg("request_ids"),
             nb::arg("beam_width"), nb::arg("offset"), nb::arg("use_swa_cyclic_slots") = true,
             nb::arg("use_swa_context_slots") = false, Released())
        .def("analyze_prefix_reuse", &B::analyze_prefix_reuse, nb::arg("unique_tokens"), nb::arg("llm_request"),
             Released())
        .def("get_iteration_stats", &B::iteration_stats, Released())
        .def_prop_ro("swa_context_reuse", [](B&) { return true; });
}

template <class E>
void declare_keys(nb::module_& module) {
    using K = Key<E>;
    nb::class_<K> key(module, "BlockKey");
    key.def(nb::init<>())
        .def(
            "__init__",
            [](K* self, const std::vector<Token>& tokens, std::optional<std::uint64_t> lora) {
                Tokens unique;
                for (Token token : tokens) unique.push_back({token, 0});
                new (self) K{{false, lora, std::move(unique), std::nullopt, {}}};
            },
            nb::arg("tokens"), nb::arg("lora_task_id") = nb::none())
        .def(
            "__init__",
            [](K* self, bool extra, std::optional<std::uint64_t> lora, Tokens tokens) {
                new (self) K{{extra, lora, std::move(tokens), std::nullopt, {}}};
            },
            nb::arg("uses_extra_ids"), nb::arg("lora_task_id").none(), nb::arg("unique_tokens"))
        .def_ro("uses_extra_ids", &K::uses_extra_ids)
        .def_ro("lora_task_id", &K::lora_task_id)
        .def_ro("unique_tokens", &K::unique_tokens);
    if constexpr (E::is_late) {
        key.def("__eq__", [](const K& one, const K& other) { return one <=> other == 0; })
            .def("__hash__", [](const K& self) {
                std::size_t hash = self.lora_task_id.value_or(0) * 31 + self.cache_salt_id.value_or(0);
                for (const UniqueToken& token : self.unique_tokens) hash = hash * 1000003 + std::size_t(token.token_id);
                return hash;
            });
        using S = Summary<E>;
        nb::class_<S>(module, "PrefixReuseSummary")
            .def(nb::init<>())
            .def_ro("reusable_blocks_allocated", &S::reusable_blocks_allocated)
            .def_ro("reusable_blocks_all", &S::reusable_blocks_all)
            .def_ro("first_new_block", &S::first_new_block);
    }
}

template <class E>
void bind_manager(nb::module_& module) {
    declare_keys<E>(module);
    nb::class_<Connector<E>, PyConnector<E>>(module, "KvCacheConnectorManager")
        .def(nb::init<>())
        .def("get_num_new_matched_tokens", &Connector<E>::get_num_new_matched_tokens, nb::arg("request"),
             nb::arg("num_computed_tokens"));
    nb::class_<Base<E>> base(module, "BaseKVCacheManager");
    declare_common<E>(base);
    if constexpr (E::is_late) {
        declare_late<E>(base);
    } else {
        declare_early<E>(base);
    }
    nb::class_<Manager<E>, Base<E>> cls(module, "KVCacheManager");
    declare_constructor<E>(cls);
    using M = Manager<E>;
    if constexpr (!E::is_a) {
        cls.def("scheduling_has_free_blocks", &M::scheduling_has_free, nb::arg("num_required"), nb::arg("window_size"),
                Released())
            .def_prop_ro("is_variable_window", &M::variable_window);
    }
    cls.def("witness_take_transfers", &M::witness_transfers, Released())
        .def(
            "witness_slots", [](M& self, RequestId id, int window) { return self.books.slots(id, window); }, Released())
        .def("witness_calls", [](M& self) { return self.calls.calls(); })
        .def("witness_record", [](M& self, bool on) { self.calls.on = on; })
        .def("witness_cached",
             [](M& self) {
                 const auto cached = [&self] {
                     const nb::gil_scoped_release release;
                     return self.books.cached();
                 }();
                 nb::list answer;
                 for (const auto& [tokens, computed] : cached) {
                     answer.append(nb::make_tuple(nb::tuple(nb::cast(tokens)), computed));
                 }
                 return answer;
             })
        .def("witness_free", &M::witness_free);
    module.def("set_computed_only", [](bool on) { E::rules.computed_only = on; });
    module.def("set_pins_by_list", [](bool on) { E::rules.forced_list_pins = on; });
}

}  // namespace bound
