// Names that are the same in every era.
#include <nanobind/stl/bind_vector.h>
#include <nanobind/stl/chrono.h>

#include "manager.h"
#include "scheduling.h"

namespace bound {

namespace {

const char* const kShared[] = {"LlmRequestState",
                               "LlmRequestType",
                               "FinishReason",
                               "RequestStage",
                               "SamplingConfig",
                               "UniqueToken",
                               "CacheType",
                               "DataType",
                               "KvCacheStats",
                               "CacheBlockIds",
                               "TempAttentionWindowInputs",
                               "KVCacheEventManager",
                               "KvCacheRetentionConfig",
                               "TokenRangeRetentionConfig",
                               "CapacitySchedulerPolicy",
                               "ContextChunkingPolicy",
                               "ContextChunkingConfig"};

void bind_enums(nb::module_& top) {
    nb::enum_<State>(top, "LlmRequestState")
        .value("UNKNOWN", State::UNKNOWN)
        .value("ENCODER_INIT", State::ENCODER_INIT)
        .value("CONTEXT_INIT", State::CONTEXT_INIT)
        .value("GENERATION_IN_PROGRESS", State::GENERATION_IN_PROGRESS)
        .value("GENERATION_TO_COMPLETE", State::GENERATION_TO_COMPLETE)
        .value("GENERATION_COMPLETE", State::GENERATION_COMPLETE)
        .value("DISAGG_GENERATION_INIT", State::DISAGG_GENERATION_INIT)
        .value("DISAGG_CONTEXT_TRANS_IN_PROGRESS", State::DISAGG_CONTEXT_TRANS_IN_PROGRESS)
        .value("DISAGG_CONTEXT_COMPLETE", State::DISAGG_CONTEXT_COMPLETE)
        .value("DISAGG_GENERATION_TRANS_IN_PROGRESS", State::DISAGG_GENERATION_TRANS_IN_PROGRESS)
        .value("DISAGG_GENERATION_TRANS_COMPLETE", State::DISAGG_GENERATION_TRANS_COMPLETE)
        .value("DISAGG_CONTEXT_INIT_AND_TRANS", State::DISAGG_CONTEXT_INIT_AND_TRANS)
        .value("DISAGG_TRANS_ERROR", State::DISAGG_TRANS_ERROR);
    nb::enum_<RequestType>(top, "LlmRequestType")
        .value("LLMREQUEST_TYPE_CONTEXT_AND_GENERATION", RequestType::CONTEXT_AND_GENERATION)
        .value("LLMREQUEST_TYPE_CONTEXT_ONLY", RequestType::CONTEXT_ONLY)
        .value("LLMREQUEST_TYPE_GENERATION_ONLY", RequestType::GENERATION_ONLY);
    nb::enum_<FinishReason>(top, "FinishReason")
        .value("NOT_FINISHED", FinishReason::NOT_FINISHED)
        .value("END_ID", FinishReason::END_ID)
        .value("STOP_WORDS", FinishReason::STOP_WORDS)
        .value("LENGTH", FinishReason::LENGTH)
        .value("TIMED_OUT", FinishReason::TIMED_OUT)
        .value("CANCELLED", FinishReason::CANCELLED);
    nb::enum_<Stage>(top, "RequestStage")
        .value("QUEUED", Stage::QUEUED)
        .value("ENCODER_IN_PROGRESS", Stage::ENCODER_IN_PROGRESS)
        .value("CONTEXT_IN_PROGRESS", Stage::CONTEXT_IN_PROGRESS)
        .value("GENERATION_IN_PROGRESS", Stage::GENERATION_IN_PROGRESS)
        .value("GENERATION_COMPLETE", Stage::GENERATION_COMPLETE);
}

void bind_cache_enums(nb::module_& top) {
    nb::enum_<CacheType>(top, "CacheType")
        .value("SELF", CacheType::SELF)
        .value("CROSS", CacheType::CROSS)
        .value("SELFKONLY", CacheType::SELFKONLY);
    nb::enum_<DataType>(top, "DataType")
        .value("FLOAT", DataType::FLOAT)
        .value("HALF", DataType::HALF)
        .value("INT8", DataType::INT8)
        .value("INT32", DataType::INT32)
        .value("BOOL", DataType::BOOL)
        .value("UINT8", DataType::UINT8)
        .value("FP8", DataType::FP8)
        .value("BF16", DataType::BF16)
        .value("INT64", DataType::INT64)
        .value("NVFP4", DataType::FP4);
}

void bind_policies(nb::module_& top) {
    nb::enum_<CapacityPolicy>(top, "CapacitySchedulerPolicy")
        .value("MAX_UTILIZATION", CapacityPolicy::MAX_UTILIZATION)
        .value("GUARANTEED_NO_EVICT", CapacityPolicy::GUARANTEED_NO_EVICT)
        .value("STATIC_BATCH", CapacityPolicy::STATIC_BATCH);
    nb::enum_<ChunkingPolicy>(top, "ContextChunkingPolicy")
        .value("EQUAL_PROGRESS", ChunkingPolicy::EQUAL_PROGRESS)
        .value("FIRST_COME_FIRST_SERVED", ChunkingPolicy::FIRST_COME_FIRST_SERVED);
    nb::class_<Chunking>(top, "ContextChunkingConfig")
        .def(
            "__init__", [](Chunking* self, ChunkingPolicy policy, int unit) { new (self) Chunking{policy, unit}; },
            nb::arg("chunking_policy"), nb::arg("chunk_unit_size"))
        .def_rw("chunking_policy", &Chunking::policy)
        .def_rw("chunk_unit_size", &Chunking::unit);
}

// Python sees a duration of C++ as a timedelta.
std::optional<std::chrono::duration<double, std::milli>> as_duration(std::optional<double> milliseconds) {
    if (!milliseconds) return std::nullopt;
    return std::chrono::duration<double, std::milli>{*milliseconds};
}

void bind_values(nb::module_& top) {
    nb::class_<SamplingConfig>(top, "SamplingConfig", nb::dynamic_attr())
        .def(nb::init<>())
        .def(
            "__init__", [](SamplingConfig* self, int beams) { new (self) SamplingConfig{beams, std::nullopt}; },
            nb::arg("beam_width"))
        .def_rw("beam_width", &SamplingConfig::beam_width)
        .def_rw("num_return_sequences", &SamplingConfig::num_return_sequences);
    nb::class_<UniqueToken>(top, "UniqueToken")
        .def(
            "__init__",
            [](UniqueToken* self, Token token, std::uint64_t extra) { new (self) UniqueToken{token, extra}; },
            nb::arg("token_id"), nb::arg("token_extra_id") = 0)
        .def_ro("token_id", &UniqueToken::token_id)
        .def_ro("token_extra_id", &UniqueToken::token_extra_id);
    nb::class_<TokenRangeRetention>(top, "TokenRangeRetentionConfig")
        .def(
            "__init__",
            [](TokenRangeRetention* self, int start, std::optional<int> end, int priority,
               std::optional<double> duration) { new (self) TokenRangeRetention{start, end, priority, duration}; },
            nb::arg("token_start"), nb::arg("token_end").none(), nb::arg("priority"),
            nb::arg("duration_ms") = nb::none())
        .def_ro("token_start", &TokenRangeRetention::token_start)
        .def_ro("token_end", &TokenRangeRetention::token_end)
        .def_ro("priority", &TokenRangeRetention::priority)
        .def_prop_ro("duration_ms", [](const TokenRangeRetention& self) { return as_duration(self.duration_ms); });
    nb::class_<RetentionConfig>(top, "KvCacheRetentionConfig")
        .def(
            "__init__",
            [](RetentionConfig* self, std::vector<TokenRangeRetention> ranges, int priority,
               std::optional<double> duration) { new (self) RetentionConfig{std::move(ranges), priority, duration}; },
            nb::arg("token_range_retention_configs"), nb::arg("decode_retention_priority") = kDefaultPriority,
            nb::arg("decode_duration_ms") = nb::none())
        .def_ro("token_range_retention_configs", &RetentionConfig::ranges)
        .def_ro("decode_retention_priority", &RetentionConfig::decode_priority)
        .def_prop_ro("decode_duration_ms",
                     [](const RetentionConfig& self) { return as_duration(self.decode_duration_ms); });
    nb::class_<TempWindow>(top, "TempAttentionWindowInputs")
        .def(nb::init<>())
        .def_rw("paged_context_fmha", &TempWindow::paged_context_fmha)
        .def_rw("max_input_len", &TempWindow::max_input_len)
        .def_rw("max_num_tokens", &TempWindow::max_num_tokens);
    nb::class_<EventManager>(top, "KVCacheEventManager")
        .def(
            "__init__",
            [](EventManager* self, std::size_t entries, std::optional<int>, std::optional<int>, int) {
                new (self) EventManager{entries};
            },
            nb::arg("max_kv_event_entries"), nb::arg("attention_dp_rank") = nb::none(),
            nb::arg("attention_dp_size") = nb::none(), nb::arg("attention_dp_events_gather_period_ms") = 5);
    nb::bind_vector<CacheBlockIds>(top, "CacheBlockIds");
}

void bind_stats(nb::module_& top) {
    using C = CacheStats;
    nb::class_<C>(top, "KvCacheStats")
        .def(nb::init<>())
        .def_rw("max_num_blocks", &C::max_num_blocks)
        .def_rw("free_num_blocks", &C::free_num_blocks)
        .def_rw("used_num_blocks", &C::used_num_blocks)
        .def_rw("tokens_per_block", &C::tokens_per_block)
        .def_rw("alloc_total_blocks", &C::alloc_total_blocks)
        .def_rw("alloc_new_blocks", &C::alloc_new_blocks)
        .def_rw("reused_blocks", &C::reused_blocks)
        .def_rw("missed_blocks", &C::missed_blocks)
        .def_rw("cache_hit_rate", &C::cache_hit_rate)
        .def_rw("num_free_blocks_per_window_size", &C::num_free_blocks_per_window_size)
        .def_rw("allocated_bytes", &C::allocated_bytes);
    using I = IterationStats;
    nb::class_<I>(top, "KvCacheIterationStats")
        .def(nb::init<>())
        .def_rw("primary_max_num_blocks", &I::primary_max_num_blocks)
        .def_rw("primary_free_num_blocks", &I::primary_free_num_blocks)
        .def_rw("primary_used_num_blocks", &I::primary_used_num_blocks)
        .def_rw("secondary_max_num_blocks", &I::secondary_max_num_blocks)
        .def_rw("secondary_free_num_blocks", &I::secondary_free_num_blocks)
        .def_rw("secondary_used_num_blocks", &I::secondary_used_num_blocks)
        .def_rw("iter_alloc_total_blocks", &I::iter_alloc_total_blocks)
        .def_rw("iter_alloc_new_blocks", &I::iter_alloc_new_blocks)
        .def_rw("iter_reused_blocks", &I::iter_reused_blocks)
        .def_rw("iter_full_reused_blocks", &I::iter_full_reused_blocks)
        .def_rw("iter_partial_reused_blocks", &I::iter_partial_reused_blocks)
        .def_rw("iter_missed_blocks", &I::iter_missed_blocks)
        .def_rw("iter_cache_hit_rate", &I::iter_cache_hit_rate)
        .def_rw("iter_gen_alloc_blocks", &I::iter_gen_alloc_blocks)
        .def_rw("iter_onboard_blocks", &I::iter_onboard_blocks)
        .def_rw("iter_onboard_bytes", &I::iter_onboard_bytes)
        .def_rw("iter_offload_blocks", &I::iter_offload_blocks)
        .def_rw("iter_offload_bytes", &I::iter_offload_bytes)
        .def_rw("iter_intra_device_copy_blocks", &I::iter_intra_device_copy_blocks)
        .def_rw("iter_intra_device_copy_bytes", &I::iter_intra_device_copy_bytes);
}

}  // namespace

void bind_shared(nb::module_& top) {
    bind_enums(top);
    bind_cache_enums(top);
    bind_policies(top);
    bind_values(top);
    bind_stats(top);
}

void share(nb::module_& top, nb::module_& era) {
    for (const char* name : kShared) era.attr(name) = top.attr(name);
    nb::object type = top.attr("LlmRequestType");
    for (const char* name : {"LLMREQUEST_TYPE_CONTEXT_AND_GENERATION", "LLMREQUEST_TYPE_CONTEXT_ONLY",
                             "LLMREQUEST_TYPE_GENERATION_ONLY"}) {
        era.attr(name) = type.attr(name);
    }
    era.attr("ReqIdsSet") = nb::module_::import_("builtins").attr("set");
}

}  // namespace bound
