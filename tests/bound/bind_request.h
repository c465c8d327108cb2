// Declares the request of one era: a generic base with the properties, and LlmRequest, from which Python derives.
#pragma once

#include "manager.h"

namespace bound {

using OptionalInt = std::optional<int>;
using OptionalTokens = std::optional<std::vector<Token>>;
using OptionalInts = std::optional<std::vector<std::int32_t>>;

template <class E>
void start(Llm<E>* built, const std::vector<Token>& input_tokens) {
    try {
        built->start(input_tokens);
    } catch (...) {
        // When __init__ throws, the binding assumes that nothing was built.
        built->~Llm<E>();
        throw;
    }
}

template <class E>
void construct_request(Llm<E>* self, RequestId id, int max_new_tokens, std::vector<Token> input_tokens,
                       SamplingConfig sampling, bool is_streaming, OptionalInt end_id, OptionalInt pad_id,
                       nb::object embedding_bias, nb::object bad_words, nb::object stop_words,
                       OptionalInts position_ids, nb::object prompt_table, OptionalInt prompt_vocab_size,
                       std::optional<std::vector<std::vector<std::int32_t>>> hashes, OptionalInts positions,
                       OptionalInts lengths, nb::object multimodal_embedding, nb::object mrope,
                       OptionalInt mrope_deltas, std::optional<std::uint64_t> lora_task, nb::object lora_weights,
                       nb::object lora_config, nb::object lookahead, std::optional<RetentionConfig> retention,
                       bool log_probs, bool context_logits, bool generation_logits, OptionalTokens draft_tokens,
                       nb::object draft_logits, bool exclude_input, nb::object, bool, OptionalTokens encoder_tokens,
                       bool encoder_output, std::optional<RequestId>, float priority, nb::object encoder_features,
                       OptionalInt encoder_output_len, nb::object, RequestType type,
                       std::optional<std::vector<std::uint64_t>> extra_ids, int num_return_sequences, nb::object,
                       nb::object, bool perf_metrics, nb::object guided, OptionalInt, nb::object,
                       nb::object context_phase, std::optional<std::uint64_t> salt, nb::object) {
    new (self) Llm<E>();
    self->id = id;
    self->max_new_tokens = max_new_tokens;
    self->sampling = sampling;
    self->sampling.num_return_sequences = num_return_sequences;
    self->streaming = is_streaming;
    self->end_id = end_id;
    self->pad_id = pad_id;
    self->multimodal_hashes = std::move(hashes);
    self->multimodal_positions = std::move(positions);
    self->multimodal_lengths = std::move(lengths);
    self->lora_task_id = lora_task;
    self->cache_salt_id = salt;
    self->retention = std::move(retention);
    self->draft_tokens = std::move(draft_tokens);
    self->encoder_tokens = std::move(encoder_tokens);
    self->encoder_output_len = encoder_output_len;
    self->has_encoder_features = !encoder_features.is_none();
    self->priority = priority;
    self->type = type;
    self->extra_ids = std::move(extra_ids);
    self->kept = {{"embedding_bias", embedding_bias},
                  {"bad_words_list", bad_words},
                  {"stop_words_list", stop_words},
                  {"position_ids", nb::cast(position_ids)},
                  {"prompt_embedding_table", prompt_table},
                  {"prompt_vocab_size", nb::cast(prompt_vocab_size)},
                  {"multimodal_embedding", multimodal_embedding},
                  {"mrope_rotary_cos_sin", mrope},
                  {"mrope_position_deltas", nb::cast(mrope_deltas)},
                  {"lora_weights", lora_weights},
                  {"lora_config", lora_config},
                  {"lookahead_config", lookahead},
                  {"draft_logits", draft_logits},
                  {"guided_decoding_params", guided},
                  {"context_phase_params", context_phase},
                  {"return_log_probs", nb::bool_(log_probs)},
                  {"return_context_logits", nb::bool_(context_logits)},
                  {"return_generation_logits", nb::bool_(generation_logits)},
                  {"return_encoder_output", nb::bool_(encoder_output)},
                  {"exclude_input_from_output", nb::bool_(exclude_input)},
                  {"return_perf_metrics", nb::bool_(perf_metrics)}};
    start(self, input_tokens);
}

template <class E>
void declare_request_constructor(nb::class_<Llm<E>, Generic<E>>& cls) {
    const auto empty = [](const char* name) { return nb::arg(name) = nb::none(); };
    cls.def(
        "__init__", &construct_request<E>, nb::arg("request_id"), nb::arg("max_new_tokens"), nb::arg("input_tokens"),
        nb::arg("sampling_config"), nb::arg("is_streaming"), empty("end_id"), empty("pad_id"), empty("embedding_bias"),
        empty("bad_words_list"), empty("stop_words_list"), empty("position_ids"), empty("prompt_embedding_table"),
        empty("prompt_vocab_size"), empty("multimodal_hashes"), empty("multimodal_positions"),
        empty("multimodal_lengths"), empty("multimodal_embedding"), empty("mrope_rotary_cos_sin"),
        empty("mrope_position_deltas"), empty("lora_task_id"), empty("lora_weights"), empty("lora_config"),
        empty("lookahead_config"), empty("kv_cache_retention_config"), nb::arg("return_log_probs") = false,
        nb::arg("return_context_logits") = false, nb::arg("return_generation_logits") = false, empty("draft_tokens"),
        empty("draft_logits"), nb::arg("exclude_input_from_output") = false, empty("logits_post_processor"),
        nb::arg("apply_logits_post_processor_batched") = false, empty("encoder_input_tokens"),
        nb::arg("return_encoder_output") = false, empty("client_id"), nb::arg("priority") = 0.5F,
        empty("encoder_input_features"), empty("encoder_output_len"), empty("cross_attention_mask"),
        nb::arg("llm_request_type") = RequestType::CONTEXT_AND_GENERATION, empty("input_token_extra_ids"),
        nb::arg("num_return_sequences") = 1, empty("eagle_config"), empty("skip_cross_attn_blocks"),
        nb::arg("return_perf_metrics") = false, empty("guided_decoding_params"), empty("language_adapter_uid"),
        empty("allotted_time_ms"), empty("context_phase_params"), empty("cache_salt_id"), empty("arrival_time"));
}

// Kept for Python alone; nothing in the books depends on them.
template <class E>
void declare_kept(nb::class_<Generic<E>>& cls) {
    using G = Generic<E>;
    const auto get = [](const G& self, const char* name) -> nb::object {
        const auto found = self.kept.find(name);
        return found == self.kept.end() ? nb::none() : found->second;
    };
    for (const char* name :
         {"prompt_embedding_table", "multimodal_embedding", "mrope_rotary_cos_sin", "bad_words_list", "embedding_bias",
          "stop_words_list", "context_logits", "generation_logits", "prompt_vocab_size", "mrope_position_deltas",
          "lookahead_config", "return_log_probs", "return_context_logits", "return_generation_logits", "log_probs",
          "cum_log_probs", "context_phase_params", "return_perf_metrics", "position_ids"}) {
        cls.def_prop_ro(name, [get, name](const G& self) { return get(self, name); });
    }
    for (const char* name : {"draft_logits", "lora_config", "lora_weights", "guided_decoding_params"}) {
        cls.def_prop_rw(
            name, [get, name](const G& self) { return get(self, name); },
            [name](G& self, nb::object value) { self.kept[name] = std::move(value); }, nb::arg("value").none());
    }
    cls.def(
           "set_exclude_input_from_output",
           [](G& self, bool value) { self.kept["exclude_input_from_output"] = nb::bool_(value); }, nb::arg("exclude"))
        .def(
            "set_return_encoder_output",
            [](G& self, bool value) { self.kept["return_encoder_output"] = nb::bool_(value); },
            nb::arg("return_encoder_output"))
        .def("get_return_encoder_output", [get](const G& self) { return get(self, "return_encoder_output"); })
        .def("priority", [](const G& self) { return self.priority; })
        .def("set_priority", [](G& self, float value) { self.priority = value; });
}

template <class E>
void declare_tokens(nb::class_<Generic<E>>& cls) {
    using G = Generic<E>;
    cls.def("get_num_tokens", &G::num_tokens, nb::arg("beam"))
        .def_prop_ro("max_beam_num_tokens", &G::max_beam_num_tokens)
        .def("get_token", &G::token, nb::arg("beam"), nb::arg("pos"))
        .def(
            "get_tokens", [](const G& self, int beam) { return self.tokens.at(std::size_t(beam)); }, nb::arg("beam"))
        .def("get_tokens", [](const G& self) { return self.tokens; })
        .def(
            "get_last_tokens", [](const G& self, int beam) { return self.last_tokens.at(std::size_t(beam)); },
            nb::arg("beam"))
        .def("get_last_tokens", [](const G& self) { return self.last_tokens; })
        .def(
            "get_beam_width_by_iter", [](const G& self, bool) { return self.sampling.beam_width; },
            nb::arg("for_next_iteration") = false)
        .def_prop_ro("max_num_generated_tokens", &G::num_generated)
        .def("add_new_token", &G::add_token, nb::arg("token"), nb::arg("beam"))
        .def("add_new_tokens", &G::add_tokens, nb::arg("beam_tokens"))
        .def_prop_ro("num_draft_tokens", &G::num_draft_tokens)
        .def("has_draft_tokens", &G::has_draft_tokens)
        .def("set_generated_tokens", &G::set_generated, nb::arg("generated_beam_tokens"))
        .def("pause", &G::pause, nb::arg("max_input_len"))
        .def_prop_rw(
            "draft_tokens",
            [](const G& self) { return self.has_draft_tokens() ? self.draft_tokens : OptionalTokens(); },
            [](G& self, const OptionalTokens& tokens) {
                // None keeps the current tokens. A caller that wants none must assign an empty list.
                if (tokens) self.draft_tokens = tokens;
            },
            nb::arg("value").none())
        .def_rw("max_sent_token_len", &G::max_sent_token_len)
        .def_rw("decoding_iter", &G::decoding_iter)
        .def_prop_ro("avg_decoded_tokens_per_iter", [](const G& self) {
            return self.decoding_iter == 0 ? 0.0F : float(self.num_generated()) / float(self.decoding_iter);
        });
    if constexpr (!E::is_a && !E::is_s) {
        cls.def("get_unique_tokens", &G::unique_tokens, nb::arg("beam"))
            .def("get_unique_tokens",
                 [](const G& self) {
                     std::vector<Tokens> all;
                     for (std::size_t beam = 0; beam < self.tokens.size(); ++beam) {
                         all.push_back(self.unique_tokens(int(beam)));
                     }
                     return all;
                 })
            .def("get_encoder_unique_tokens", [](const G& self) -> std::optional<Tokens> {
                if (!self.encoder_tokens) return std::nullopt;
                Tokens unique;
                for (Token token : *self.encoder_tokens) unique.push_back({token, 0});
                return unique;
            });
    }
}

template <class E>
void declare_state(nb::class_<Generic<E>>& cls) {
    using G = Generic<E>;
    const auto is = [&cls](const char* name, State state) {
        cls.def_prop_ro(name, [state](const G& self) { return self.state == state; });
    };
    is("is_generation_complete_state", State::GENERATION_COMPLETE);
    is("is_disagg_generation_init_state", State::DISAGG_GENERATION_INIT);
    is("is_disagg_generation_transmission_complete", State::DISAGG_GENERATION_TRANS_COMPLETE);
    is("is_disagg_generation_transmission_in_progress", State::DISAGG_GENERATION_TRANS_IN_PROGRESS);
    is("is_disagg_context_complete_state", State::DISAGG_CONTEXT_COMPLETE);
    cls.def_rw("state", &G::state)
        .def_prop_ro("is_context_init_state", &G::in_context)
        .def_prop_ro("is_generation_in_progress_state", &G::in_generation)
        .def_prop_ro(
            "is_context_finished",
            [](const G& self) { return self.in_generation() || self.state == State::DISAGG_CONTEXT_INIT_AND_TRANS; })
        .def_prop_ro("is_disagg_context_transmission_state",
                     [](const G& self) {
                         return self.state == State::DISAGG_CONTEXT_TRANS_IN_PROGRESS ||
                                self.state == State::DISAGG_CONTEXT_INIT_AND_TRANS;
                     })
        .def_prop_ro("stage", &G::stage)
        .def_prop_ro("is_finished", &G::finished)
        .def_prop_ro("is_finished_due_to_length", &G::finished_due_to_length)
        .def("set_finished_reason", &G::set_finish_reason, nb::arg("finish_reason"), nb::arg("beam"))
        .def_prop_ro("llm_request_type", [](const G& self) { return self.type; })
        .def_prop_ro("is_context_only_request", [](const G& self) { return self.type == RequestType::CONTEXT_ONLY; })
        .def_prop_ro("is_generation_only_request",
                     [](const G& self) { return self.type == RequestType::GENERATION_ONLY; })
        .def_prop_rw("context_chunk_size", &G::chunk, &G::set_chunk)
        .def_prop_rw("context_current_position", &G::position, &G::set_position)
        .def_prop_ro("prepopulated_prompt_len", &G::prepopulated)
        .def_prop_ro("context_remaining_length", &G::remaining)
        .def("move_to_next_context_chunk", &G::next_chunk)
        .def_prop_ro("is_last_context_chunk", &G::last_chunk)
        .def_prop_ro("is_first_context_chunk", &G::first_chunk);
    if constexpr (E::is_late) {
        cls.def("set_prepopulated_prompt_len", &G::set_prepopulated, nb::arg("prepopulated_prompt_len"),
                nb::arg("kv_tokens_per_block"))
            .def_rw("estimated_reusable_tokens", &G::estimated_reusable_tokens);
    }
}

template <class E>
void declare_identity(nb::class_<Generic<E>>& cls) {
    using G = Generic<E>;
    cls.def_rw("request_id", &G::id)
        .def_rw("prompt_len", &G::prompt_len)
        .def_prop_ro("orig_prompt_len", [](const G& self) { return self.orig_prompt_len; })
        .def_rw("max_new_tokens", &G::max_new_tokens)
        .def_rw("sampling_config", &G::sampling)
        .def_rw("streaming", &G::streaming)
        .def_rw("end_id", &G::end_id, nb::arg("value").none())
        .def_rw("pad_id", &G::pad_id, nb::arg("value").none())
        .def_rw("seq_slot", &G::seq_slot, nb::arg("value").none())
        .def_ro("lora_task_id", &G::lora_task_id)
        .def_ro("cache_salt_id", &G::cache_salt_id)
        .def_prop_ro("parent_request_id", [](const G& self) { return self.parent_id.value_or(0); })
        .def_prop_ro("is_child", [](const G& self) { return self.parent_id.has_value(); })
        // By value, so each read gives Python a fresh list.
        .def_prop_ro("multimodal_hashes", [](const G& self) { return self.multimodal_hashes; })
        .def_prop_ro("multimodal_positions", [](const G& self) { return self.multimodal_positions; })
        .def_prop_ro("multimodal_lengths", [](const G& self) { return self.multimodal_lengths; })
        .def_rw("is_dummy_request", &G::is_dummy)
        .def_rw("use_draft_model", &G::use_draft_model)
        .def_prop_ro("alloc_total_blocks", [](const G& self) { return self.counts.alloc_total; })
        .def_prop_ro("alloc_new_blocks", [](const G& self) { return self.counts.alloc_new; })
        .def_prop_ro("reused_blocks", [](const G& self) { return self.counts.reused; })
        .def_prop_ro("missed_blocks", [](const G& self) { return self.counts.missed; })
        .def_prop_ro("kv_cache_hit_rate", [](const G& self) { return self.counts.hit_rate(); })
        .def_prop_ro("kv_cache_size", [](const G&) { return 0; })
        .def_prop_ro("kv_cache_transfer_time_ms", [](const G&) { return 0.0; });
}

template <class E>
void bind_request(nb::module_& module) {
    nb::class_<Generic<E>> base(module, "GenericLlmRequest");
    declare_kept<E>(base);
    declare_tokens<E>(base);
    declare_state<E>(base);
    declare_identity<E>(base);
    nb::class_<Llm<E>, Generic<E>> cls(module, "LlmRequest", nb::dynamic_attr());
    declare_request_constructor<E>(cls);
    cls.def(nb::init<const Llm<E>&>())
        .def(
            "create_child_request",
            [](const Llm<E>& self, RequestId child_id) {
                auto child = std::make_shared<Llm<E>>(self);
                child->id = child_id;
                child->parent_id = self.id;
                return child;
            },
            nb::arg("child_id"))
        .def("finish_by_reason", &Llm<E>::finish_by, nb::arg("finish_reason"))
        .def("set_first_scheduled_time", [](Llm<E>&) {})
        .def(
            "update_perf_metrics", [](Llm<E>&, std::uint64_t) {}, nb::arg("iter_counter"))
        .def("remove_lora_tensors", [](Llm<E>& self) {
            self.kept.erase("lora_weights");
            self.kept.erase("lora_config");
        });
    module.def(
        "add_new_tokens_to_requests",
        [](const std::vector<std::shared_ptr<Llm<E>>>& requests, const std::vector<Token>& tokens, int beam) {
            check(requests.size() == tokens.size(), "as many tokens as requests are needed");
            for (std::size_t i = 0; i < requests.size(); ++i) requests[i]->add_token(tokens[i], beam);
        },
        nb::arg("requests"), nb::arg("tokens"), nb::arg("beam_idx"));
}

}  // namespace bound
