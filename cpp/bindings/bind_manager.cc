#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/integers.h"
#include "bindings/manager_class.h"
#include "bindings/named_integers.h"
#include "bindings/strong_numbers.h"
#include "bindings/wide_integers.h"
#include "core/block_manager.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

using ChunkTokens = Named<std::optional<std::uint32_t>, "chunk_tokens">;
using TokensNewMax = Named<std::optional<std::uint64_t>, "tokens_new_max">;
using NamedWindow = Named<WindowSize, "window_size">;
using NamedComputed = Named<std::optional<std::uint32_t>, "computed">;
using NamedCount = Named<std::uint32_t, "count">;
using Now = Named<std::int64_t, "now_ms">;
using Offsets = nb::ndarray<std::int32_t, nb::ndim<4>, nb::c_contig, nb::device::cpu>;

RequestPtr request_of(nb::handle item) {
    if (!nb::isinstance<SequenceRequest>(item)) {
        throw nb::type_error(("requests: expected SequenceRequest, got " + shown(item)).c_str());
    }
    if (!nb::inst_ready(item)) {
        throw nb::type_error("requests: a SequenceRequest whose __init__ has not been called");
    }
    return nb::cast<const SequenceRequest&>(item).request;
}

BatchAdmission add_sequence_batch(BlockManager& self, nb::handle requests, TokensNewMax tokens_new_max,
                                  ChunkTokens chunk_tokens) {
    std::vector<RequestPtr> batch;
    for (const nb::handle request : requests) {
        batch.push_back(request_of(request));
    }
    return without_gil([&] { return self.add_sequence_batch(batch, tokens_new_max, chunk_tokens); });
}

void add_tokens(BlockManager& self, nb::handle request_ids, nb::handle counts, nb::handle tokens, nb::handle computed) {
    const auto ids = read_integers<RequestId>(request_ids, {"add_tokens, request_ids"});
    const auto more = read_integers<std::uint32_t>(counts, {"add_tokens, counts"});
    const auto values = read_optional<TokenId>(tokens, "add_tokens, tokens");
    const auto done = read_optional<std::uint32_t>(computed, "add_tokens, computed");
    // Giving the GIL away and taking it back costs more than a short call does. A lock that another thread has is not
    // awaited with the GIL held.
    if (!self.add_few_tokens(ids, more, values, done)) {
        without_gil([&] { self.add_tokens(ids, more, values, done); });
    }
}

void add_token(BlockManager& self, NamedRequest request_id, NamedCount count, nb::handle tokens,
               NamedComputed computed) {
    const auto values = read_optional<TokenId>(tokens, "add_token, tokens");
    const std::uint32_t done = computed.value.value_or(0);
    if (!self.add_few_tokens({&request_id.value, 1}, {&count.value, 1}, values, {{&done, 1}})) {
        without_gil([&] { self.add_tokens({&request_id.value, 1}, {&count.value, 1}, values, {{&done, 1}}); });
    }
}

std::vector<BlockId> remove_sequence(BlockManager& self, NamedRequest request_id, bool store, bool pin,
                                     nb::handle tokens, NamedComputed computed) {
    const auto values = read_optional<TokenId>(tokens, "remove_sequence, tokens");
    return without_gil([&] { return self.remove_sequence(request_id, store, pin, values, computed); });
}

std::vector<std::pair<SlotIndex, const char*>> pin_blocks_by_id(BlockManager& self, nb::handle ids) {
    const auto blocks = read_ids(ids, {"pin_blocks_by_id, ids"});
    std::vector<std::pair<SlotIndex, const char*>> out;
    for (const PinnedSlot& pinned : without_gil([&] { return self.pin_blocks_by_id(blocks); })) {
        out.emplace_back(pinned.slot, tier_name(pinned.tier));
    }
    return out;
}

void unpin_blocks_by_id(BlockManager& self, nb::handle ids, const std::optional<std::string>& tier) {
    const auto blocks = read_ids(ids, {"unpin_blocks_by_id, ids"});
    const auto from = tier_from(tier);
    without_gil([&] { self.unpin_blocks_by_id(blocks, from); });
}

BlockIdTable cache_block_ids(const BlockManager& self, NamedRequest request_id, NamedWindow window_size) {
    return without_gil([&] { return self.get_batch_cache_block_ids({&request_id.value, 1}, window_size); }).front();
}

std::vector<BlockIdTable> batch_cache_block_ids(const BlockManager& self, nb::handle request_ids,
                                                NamedWindow window_size) {
    const auto ids = read_integers<RequestId>(request_ids, {"get_batch_cache_block_ids, request_ids"});
    return without_gil([&] { return self.get_batch_cache_block_ids(ids, window_size); });
}

// `output` is held by this frame, so its memory stays while the GIL is released.
void copy_offsets(const BlockManager& self, const Offsets& output, nb::handle request_ids,
                  Named<std::uint32_t, "beam_width"> beam_width, NamedId<"offset"> offset,
                  Named<std::int32_t, "scale"> scale, Named<std::int32_t, "v_offset"> v_offset) {
    const auto ids = read_integers<RequestId>(request_ids, {"copy_batch_block_offsets, request_ids"});
    if (output.shape(2) != 2) {
        throw nb::value_error(
            ("copy_batch_block_offsets, output: shape is (windows, rows, 2, blocks), but dimension 2 is " +
             std::to_string(output.shape(2)))
                .c_str());
    }
    const OffsetTable table{output.data(), output.shape(0), output.shape(1), output.shape(3)};
    without_gil([&] { self.copy_batch_block_offsets(table, ids, beam_width, offset, {scale, v_offset}); });
}

void bind_sequences(ManagerClass& c) {
    using namespace nb::literals;
    c.def("add_sequence_batch", &add_sequence_batch, "requests"_a, nb::kw_only(),
          "tokens_new_max"_a.none() = nb::none(), "chunk_tokens"_a.none() = nb::none(),
          nb::sig("def add_sequence_batch(self, requests: Iterable[SequenceRequest], *, tokens_new_max: int | None = "
                  "None, chunk_tokens: int | None = None) -> BatchAdmission"),
          "Claims every match of every request first, then onboards and allocates. All or nothing. With chunk_tokens "
          "only the first chunk of each prompt is reserved; add_tokens reserves the next ones.")
        .def(
            "add_sequence",
            [](BlockManager& self, const SequenceRequest& request, ChunkTokens chunk_tokens) {
                return without_gil([&] { return self.add_sequence(request.request, chunk_tokens); });
            },
            "request"_a, nb::kw_only(), "chunk_tokens"_a.none() = nb::none(), "A batch of one.")
        .def(
            "analyze_prefix_reuse",
            [](BlockManager& self, const SequenceRequest& request, ChunkTokens chunk_tokens) {
                return without_gil([&] { return self.analyze_prefix_reuse(request.request, chunk_tokens); });
            },
            "request"_a, nb::kw_only(), "chunk_tokens"_a.none() = nb::none(),
            "What admitting the request so, now, would reuse. Changes nothing.")
        .def("add_token", &add_token, "request_id"_a, "count"_a = 1, "tokens"_a = nb::none(), nb::kw_only(),
             "computed"_a = nb::none(),
             nb::sig("def add_token(self, request_id: int, count: int = 1, tokens: Any = None, *, computed: int | None "
                     "= None) -> None"),
             "Reserves count more positions; tokens, if given, are their values. computed: leading positions, of those "
             "before the call, whose values are in the cache by now.")
        .def("add_tokens", &add_tokens, "request_ids"_a, "counts"_a, "tokens"_a = nb::none(), nb::kw_only(),
             "computed"_a = nb::none(),
             nb::sig("def add_tokens(self, request_ids: Any, counts: Any, tokens: Any = None, *, computed: Any = None) "
                     "-> None"),
             "Growth of a whole iteration in one call. All or nothing.")
        .def(
            "rewind_kv_cache",
            [](BlockManager& self, NamedRequest request_id, NamedCount count) {
                without_gil([&] { self.rewind_kv_cache(request_id, count); });
            },
            "request_id"_a, "count"_a, "Takes back the last count grown positions.")
        .def(
            "store_context_blocks",
            [](BlockManager& self, NamedRequest request_id, Named<std::uint32_t, "tokens_computed"> tokens_computed) {
                without_gil([&] { self.store_context_blocks(request_id, tokens_computed); });
            },
            "request_id"_a, "tokens_computed"_a,
            "The prompt's first tokens_computed tokens have been computed: their full blocks become reusable.")
        .def("remove_sequence", &remove_sequence, "request_id"_a, nb::kw_only(), "store"_a = true, "pin"_a = false,
             "tokens"_a = nb::none(), "computed"_a = nb::none(),
             nb::sig("def remove_sequence(self, request_id: int, *, store: bool = True, pin: bool = False, tokens: Any "
                     "= None, computed: int | None = None) -> list[int]"),
             "Ends a sequence. tokens: the whole sequence, where growth did not give the values. computed: leading "
             "positions whose values are in the cache. Returns the pinned ids.");
}

void bind_pins(ManagerClass& c) {
    using namespace nb::literals;
    c.def("pin_blocks_by_id", &pin_blocks_by_id, "ids"_a,
          nb::sig("def pin_blocks_by_id(self, ids: Any) -> list[tuple[int, str]]"),
          "Pins blocks where they are; returns (slot, tier) of each.")
        .def("unpin_blocks_by_id", &unpin_blocks_by_id, "ids"_a, nb::kw_only(), "tier"_a = nb::none(),
             nb::sig("def unpin_blocks_by_id(self, ids: Any, *, tier: str | None = None) -> None"),
             "Ends one pin of each; tier must be given where a block is pinned in both.");
}

void bind_tables(ManagerClass& c) {
    using namespace nb::literals;
    c.def("get_cache_block_ids", &cache_block_ids, "request_id"_a, "window_size"_a.none() = nb::none(),
          "[beam][block]; -1 where the block has left the window.")
        .def("get_batch_cache_block_ids", &batch_cache_block_ids, "request_ids"_a, "window_size"_a.none() = nb::none(),
             nb::sig("def get_batch_cache_block_ids(self, request_ids: Any, window_size: int | None = None) -> "
                     "list[list[list[int]]]"),
             "get_cache_block_ids() of several requests: [request][beam][block].")
        .def("copy_batch_block_offsets", &copy_offsets, nb::arg("output").noconvert(), "request_ids"_a, "beam_width"_a,
             "offset"_a, nb::kw_only(), "scale"_a = 1, "v_offset"_a = 0,
             nb::sig("def copy_batch_block_offsets(self, output: Any, request_ids: Any, beam_width: int, offset: int, "
                     "*, scale: int = 1, "
                     "v_offset: int = 0) -> None"),
             "Writes primary slots into an int32 array (windows, rows, 2, blocks): K = slot * scale, V = K + v_offset, "
             "-1 where the block "
             "has left the window. Request i, beam b goes to row offset + i * beam_width + b.");
}

void bind_questions(ManagerClass& c) {
    using namespace nb::literals;
    c.def(
         "blocks_to_admit",
         [](BlockManager& self, const SequenceRequest& request, Named<std::uint32_t, "tokens_new_max"> tokens_new_max,
            ChunkTokens chunk_tokens) {
             return without_gil([&] { return self.blocks_to_admit(request.request, tokens_new_max, chunk_tokens); });
         },
         "request"_a, nb::kw_only(), "tokens_new_max"_a = 0, "chunk_tokens"_a.none() = nb::none(),
         "Primary blocks, window by window, that the request alone would take of those free or cached: to be admitted "
         "now, and to grow by tokens_new_max positions.")
        .def(
            "blocks_to_grow",
            [](const BlockManager& self, nb::handle request_ids, nb::handle counts) {
                const auto ids = read_integers<RequestId>(request_ids, {"blocks_to_grow, request_ids"});
                const auto more = read_integers<std::uint32_t>(counts, {"blocks_to_grow, counts"});
                return without_gil([&] { return self.blocks_to_grow(ids, more); });
            },
            "request_ids"_a, "counts"_a, nb::sig("def blocks_to_grow(self, request_ids: Any, counts: Any) -> int"),
            "Primary blocks that add_tokens with these counts would take beyond those kept, in the window where it is "
            "most.")
        .def(
            "free_blocks_without",
            [](const BlockManager& self, nb::handle request_ids) {
                const auto ids = read_integers<RequestId>(request_ids, {"free_blocks_without, request_ids"});
                return without_gil([&] { return self.free_blocks_without(ids); });
            },
            "request_ids"_a, nb::sig("def free_blocks_without(self, request_ids: Any) -> list[int]"),
            "Primary blocks, window by window, that would be there without these sequences: free or cached, and kept "
            "for nobody.")
        .def("get_token_count", of_request<&BlockManager::get_token_count>(), "request_id"_a,
             "The sequence's length: its prompt and what it has grown by.")
        .def(
            "get_num_front_blocks_removed",
            [](const BlockManager& self, NamedRequest request_id, NamedWindow window_size) {
                return without_gil([&] { return self.get_num_front_blocks_removed(request_id, window_size); });
            },
            "request_id"_a, "window_size"_a.none() = nb::none(),
            "Leading blocks of the sequence that have left the window.")
        .def(
            "get_priority_by_block_id",
            [](const BlockManager& self, NamedId<"block_id"> block_id) {
                return without_gil([&] { return self.get_priority_by_block_id(BlockId{block_id.value}); });
            },
            "block_id"_a, "The priority that the block has now.");
}

void bind_upkeep(ManagerClass& c) {
    using namespace nb::literals;
    using Nogil = nb::call_guard<GilReleased>;
    c.def("take_transfers", &BlockManager::take_transfers, Nogil(),
          "The copies queued since the last call, in the order in which they must run.")
        .def(
            "complete",
            [](BlockManager& self, NamedId<"ticket"> ticket) { without_gil([&] { self.complete(ticket); }); },
            "ticket"_a, "All copies of the ticket have been done.")
        .def(
            "fail",
            [](BlockManager& self, NamedId<"ticket"> ticket) { return without_gil([&] { return self.fail(ticket); }); },
            "ticket"_a,
            "The copies did not arrive: nothing of them stays findable. Returns the requests that own an undelivered "
            "block.")
        .def(
            "advance_time", [](BlockManager& self, Now now_ms) { without_gil([&] { self.advance_time(now_ms); }); },
            "now_ms"_a, "Moves the clock of retention durations. Never backwards.")
        .def("refresh_blocks", &BlockManager::refresh_blocks, Nogil(), "Ends an iteration of the statistics.")
        .def("reset_reuse_state", &BlockManager::reset_reuse_state, Nogil(),
             "Nothing that is cached now will be found again.")
        .def("get_kv_cache_stats", &BlockManager::get_kv_cache_stats, Nogil(),
             "Slots now, and what happened so far. Resets nothing.")
        .def("get_request_stats", of_request<&BlockManager::get_request_stats>(), "request_id"_a,
             "What one live request got and grew. UnknownRequest where there is none.")
        .def("get_latest_events", &BlockManager::get_latest_events, Nogil(), "The events since the last call.")
        .def("digest", &BlockManager::digest, Nogil(), "64 bits that are equal on ranks that are in the same state.")
        .def("check_invariants", &BlockManager::check_invariants, Nogil(),
             "Recounts everything; raises InvariantViolation.");
}

}  // namespace

void bind_manager(nb::module_& m) {
    using namespace nb::literals;
    ManagerClass manager(m, "BlockManager",
                         "A two-tier paged block manager. Every method may be called from any thread.");
    manager.def(nb::init<BlockManagerConfig>(), "config"_a)
        .def_prop_ro("config", &BlockManager::config, nb::rv_policy::copy, "What the manager was made of.");
    bind_sequences(manager);
    bind_pins(manager);
    bind_tables(manager);
    bind_questions(manager);
    bind_upkeep(manager);
    bind_verbs(manager);
    bind_decode_batch(m, manager);
    bind_request_books(m);
}

}  // namespace kvfix::bindings
