#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/integers.h"
#include "bindings/named_integers.h"
#include "bindings/repr.h"
#include "core/block_manager.h"
#include "replay/scheduler.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

using replay::Computed;
using replay::Requests;
using replay::Reuse;
using replay::Scheduler;
using replay::Tally;

// An object with the methods of trtllm_kvfix.tools.replay.host_tier.HostTier, borrowed for a call that keeps the GIL.
class PythonTier : public replay::HostTier {
  public:
    explicit PythonTier(nb::handle tier) : tier_(tier) {}

    replay::Found find(RequestId index, std::int64_t tokens_found) override {
        const auto [tokens, blocks, blocks_remote] =
            nb::cast<std::tuple<std::int64_t, std::int64_t, std::int64_t>>(tier_.attr("find")(index, tokens_found));
        return {tokens, blocks, blocks_remote};
    }
    bool step(std::span<const Computed> running) override {
        nb::list shown_to_it;
        for (const auto& [index, positions] : running) {
            shown_to_it.append(nb::make_tuple(index, positions));
        }
        return tier_.attr("step")(shown_to_it).is(nb::handle(Py_True));
    }
    void finish(std::span<const Computed> ended) override {
        nb::list indices;
        for (const Computed& one : ended) {
            indices.append(one.index);
        }
        tier_.attr("finish")(indices);
    }

  private:
    nb::handle tier_;
};

void init_requests(Requests* self, Named<TokenId, "base"> base, Named<std::uint32_t, "span"> span,
                   Named<std::uint32_t, "tokens_per_symbol"> tokens_per_symbol) {
    new (self) Requests({.base = base, .span = span, .tokens_per_symbol = tokens_per_symbol});
}

void add(Requests& self, nb::handle symbols, bool is_spelled, Named<std::uint32_t, "prompt_length"> prompt_length,
         nb::handle answer, double timestamp_ms, std::uint64_t blocks_needed, std::optional<std::int64_t> lora_id,
         nb::handle salt) {
    self.add({.symbols = read_integers<TokenId>(symbols, {"symbols"}),
              .is_spelled = is_spelled,
              .prompt_length = prompt_length,
              .answer = read_integers<TokenId>(answer, {"answer"}),
              .timestamp_ms = timestamp_ms,
              .blocks_needed = blocks_needed,
              .lora_id = lora_id,
              .salt = read_salt(salt, {"salt"})});
}

void init_scheduler(Scheduler* self, BlockManager& manager, const Requests& requests, nb::handle waiting,
                    std::int64_t blocks_primary, std::int64_t max_batch_size, std::int64_t max_num_tokens,
                    std::int64_t tokens_per_iteration, double iteration_ms, bool one_by_one) {
    auto indices = read_integers<RequestId>(waiting, {"waiting"});
    for (const RequestId index : indices) {
        if (index >= requests.size()) {
            throw nb::index_error(
                ("waiting names request " + std::to_string(index) + " of " + std::to_string(requests.size())).c_str());
        }
    }
    new (self) Scheduler(manager, requests,
                         {.blocks_primary = blocks_primary,
                          .max_batch_size = max_batch_size,
                          .max_num_tokens = max_num_tokens,
                          .tokens_per_iteration = tokens_per_iteration,
                          .iteration_ms = iteration_ms,
                          .is_one_by_one = one_by_one},
                         std::move(indices));
}

bool advance(Scheduler& self, std::int64_t iterations_max, nb::handle tier) {
    if (tier.is_none()) {
        return without_gil([&] { return self.advance(iterations_max, nullptr); });
    }
    PythonTier python_tier(tier);
    return self.advance(iterations_max, &python_tier);
}

std::string text_of(const Reuse& self) {
    return Repr("ReplayReuse")
        .add("reused", self.reused)
        .add("host", self.host)
        .add("remote", self.remote)
        .add("computed", self.computed)
        .text();
}

std::string text_of(const Tally& self) {
    return Repr("ReplayTally")
        .add("iterations", self.iterations)
        .add("finished", self.finished)
        .add("deferred", self.deferred)
        .add("overshoots", self.overshoots)
        .add("promises_broken", self.promises_broken)
        .add("tokens", text_of(self.tokens))
        .add("blocks", text_of(self.blocks))
        .text();
}

// Shows the shape alone, because another thread may be in advance(), which holds no lock.
std::string text_of(const Scheduler& self) {
    const replay::Shape& shape = self.shape();
    return Repr("ReplayScheduler")
        .add("requests", self.requests())
        .add("blocks_primary", shape.blocks_primary)
        .add("max_batch_size", shape.max_batch_size)
        .add("max_num_tokens", shape.max_num_tokens)
        .add("one_by_one", shape.is_one_by_one)
        .text();
}

void bind_tally(nb::module_& m) {
    nb::class_<Reuse>(m, "ReplayReuse", "Counts of prompt tokens, or of prompt blocks, since the beginning.")
        .def_ro("reused", &Reuse::reused, "Reused, from primary or host.")
        .def_ro("host", &Reuse::host, "Reused from host.")
        .def_ro("remote", &Reuse::remote, "Reused from host, where the store behind it had just delivered them.")
        .def_ro("computed", &Reuse::computed, "Computed, because nothing was reused.")
        .def("__repr__", [](const Reuse& reuse) { return text_of(reuse); });
    nb::class_<Tally>(m, "ReplayTally",
                      "What a replay has counted. trtllm_kvfix.tools.replay.outcome explains the terms.")
        .def_ro("iterations", &Tally::iterations, "Iterations so far, quiet ones included.")
        .def_ro("finished", &Tally::finished, "Requests that ended.")
        .def_ro("iterations_admitting", &Tally::iterations_admitting, "Iterations that admitted a request.")
        .def_ro("deferred", &Tally::deferred, "Times that a request was offered and had to wait.")
        .def_ro("overshoots", &Tally::overshoots, "Iterations over their budget.")
        .def_ro("tokens_over", &Tally::tokens_over, "Tokens over the budget, in all iterations.")
        .def_ro("tokens_over_max", &Tally::tokens_over_max, "The most tokens over the budget in one iteration.")
        .def_ro("promises", &Tally::promises, "Admissions whose reuse had been estimated.")
        .def_ro("promises_broken", &Tally::promises_broken, "Admissions whose reuse differed from the estimate.")
        .def_ro("tokens_short", &Tally::tokens_short, "Tokens whose reuse was promised but not delivered.")
        .def_ro("tokens", &Tally::tokens, "Of prompts.")
        .def_ro("blocks", &Tally::blocks, "Of prompts.")
        .def("__repr__", [](const Tally& tally) { return text_of(tally); });
}

}  // namespace

void bind_replay(nb::module_& m) {
    using namespace nb::literals;
    bind_tally(m);
    nb::class_<Requests>(m, "ReplayRequests", "The requests of a trace; each is named by its index.")
        .def("__init__", &init_requests, "base"_a, "span"_a, "tokens_per_symbol"_a,
             "How prompts are spelled: a symbol s stands for the tokens base + (s + k) % span, k counted from 0.")
        .def("add", &add, "symbols"_a, nb::kw_only(), "is_spelled"_a, "prompt_length"_a, "answer"_a, "timestamp_ms"_a,
             "blocks_needed"_a, "lora_id"_a = nb::none(), "salt"_a = nb::none(),
             nb::sig("def add(self, symbols: Any, *, is_spelled: bool, prompt_length: int, answer: Any, timestamp_ms: "
                     "float, blocks_needed: int, lora_id: int | None = None, salt: str | bytes | int | None = None) "
                     "-> None"),
             "symbols: those of the prompt, or its tokens if it is not spelled. blocks_needed: the most that it needs "
             "while it runs.")
        .def("prompt", &Requests::prompt, "index"_a, "The tokens of the prompt.")
        .def("__repr__", [](const Requests& r) { return Repr("ReplayRequests").add("requests", r.size()).text(); });
    nb::class_<Scheduler>(m, "ReplayScheduler",
                          "The scheduler that docs/replay.md describes. Only one thread may use it at a time.")
        .def("__init__", &init_scheduler, "manager"_a, "requests"_a, "waiting"_a, nb::kw_only(), "blocks_primary"_a,
             "max_batch_size"_a, "max_num_tokens"_a, "tokens_per_iteration"_a, "iteration_ms"_a, "one_by_one"_a,
             nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
             nb::sig("def __init__(self, manager: BlockManager, requests: ReplayRequests, waiting: Any, *, "
                     "blocks_primary: int, max_batch_size: int, max_num_tokens: int, tokens_per_iteration: int, "
                     "iteration_ms: float, "
                     "one_by_one: bool) -> None"),
             "waiting: indices, in the order in which they are offered.")
        .def("advance", &advance, "iterations_max"_a, "tier"_a = nb::none(),
             nb::sig("def advance(self, iterations_max: int, tier: object = None) -> bool"),
             "Runs until requests have ended, for at most iterations_max iterations. Without a tier it releases the "
             "GIL. False once no request waits or runs. tier: a HostTier of trtllm_kvfix.tools.replay, the same in "
             "every call.")
        .def_prop_ro(
            "tally", [](const Scheduler& self) { return self.tally(); }, "What has been counted so far.")
        .def("__repr__", [](const Scheduler& scheduler) { return text_of(scheduler); });
}

}  // namespace kvfix::bindings
