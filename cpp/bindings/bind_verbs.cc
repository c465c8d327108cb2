// The calls of a manager beside admission and growth: preemption, and blocks that are named and forgotten.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/manager_class.h"
#include "bindings/named_integers.h"
#include "bindings/repr.h"
#include "bindings/strong_numbers.h"
#include "bindings/wide_integers.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

std::uint64_t truncate_blocks(BlockManager& self, const SequenceRequest& request,
                              Named<std::uint32_t, "tokens_kept"> tokens_kept) {
    return without_gil([&] { return self.truncate_blocks(request.request, tokens_kept); });
}

void bind_preemption(ManagerClass& c) {
    using namespace nb::literals;
    c.def("suspend_sequence", of_request<&BlockManager::suspend_sequence>(), "request_id"_a,
          "Swaps a live sequence out: its blocks are copied to host and given up in primary. Returns how many copies "
          "are "
          "queued. All or nothing: OutOfBlocks (tier 'host') where the host tier has no room, BlockInFlight where a "
          "block of the sequence has not arrived.")
        .def("resume_sequence", of_request<&BlockManager::resume_sequence>(), "request_id"_a,
             "Brings a suspended sequence back, as it was. Returns how many copies are queued. All or nothing: "
             "OutOfBlocks, BlockInFlight where a copy to host has not ended, ValueError where one was lost.")
        .def("blocks_to_resume", of_request<&BlockManager::blocks_to_resume>(), "request_id"_a,
             "Primary blocks, window by window, that resume_sequence would take of those free or cached.");
}

void bind_names(ManagerClass& c) {
    using namespace nb::literals;
    c.def("commit_and_get_block_hashes", of_request<&BlockManager::commit_and_get_block_hashes>(), "request_id"_a,
          "The hashes of the sequence's full blocks whose tokens are known, from the first. Each is computed once.")
        .def("truncate_blocks", &truncate_blocks, "request"_a, "tokens_kept"_a,
             "Forgets cached blocks of the request's prompt that lie behind its first tokens_kept tokens, the last "
             "first, up to one that something else follows or uses. Returns how many.");
}

// Waits for the manager's lock, as every other question does.
std::string text_of(const BlockManager& self) {
    const KvCacheStats stats = without_gil([&] { return self.get_kv_cache_stats(); });
    return Repr("BlockManager")
        .add("tokens_per_block", stats.tokens_per_block)
        .add("windows", stats.windows.size())
        .add("blocks", stats.max_num_blocks)
        .add("free", stats.free_num_blocks)
        .add("sequences", stats.sequences)
        .text();
}

}  // namespace

void bind_verbs(ManagerClass& manager) {
    manager.def("__repr__", &text_of);
    bind_preemption(manager);
    bind_names(manager);
}

}  // namespace kvfix::bindings
