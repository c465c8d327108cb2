// Declares the two schedulers of one era. They take its bound manager and its requests.
#pragma once

#include <nanobind/stl/set.h>

#include "manager.h"
#include "scheduling.h"

namespace bound {

template <class E>
struct EraCapacity : CapacityScheduler {};
template <class E>
struct EraMicroBatch : MicroBatchScheduler {};

template <class E>
using RequestList = std::vector<std::shared_ptr<Llm<E>>>;

template <class E>
std::vector<Request*> bare(const RequestList<E>& requests) {
    std::vector<Request*> answer;
    for (const auto& request : requests) answer.push_back(request.get());
    return answer;
}

template <class E>
RequestList<E> pick(const RequestList<E>& requests, const Places& places) {
    RequestList<E> answer;
    for (std::size_t place : places) answer.push_back(requests[place]);
    return answer;
}

template <class E>
void bind_capacity(nb::module_& module) {
    using C = EraCapacity<E>;
    nb::class_<C>(module, "CapacityScheduler")
        .def(
            "__init__",
            [](C* self, int requests, CapacityPolicy policy, bool cache, bool two_steps, State from, State until) {
                new (self) C{{requests, policy, cache, two_steps, {from, until}}};
            },
            nb::arg("max_num_requests"), nb::arg("capacity_scheduler_policy"), nb::arg("has_kv_cache_manager"),
            nb::arg("two_step_lookahead") = false, nb::arg("no_schedule_until_state") = State::CONTEXT_INIT,
            nb::arg("no_schedule_after_state") = State::GENERATION_COMPLETE)
        .def(
            "__call__",
            [](const C& self, const RequestList<E>& active, Base<E>* manager, const nb::object&, Base<E>* cross) {
                const Capacity answer = self.schedule(bare<E>(active), manager != nullptr ? &manager->books : nullptr,
                                                      cross != nullptr ? &cross->books : nullptr);
                return std::make_tuple(pick<E>(active, answer.fitting), pick<E>(active, answer.generation_init),
                                       pick<E>(active, answer.paused));
            },
            nb::arg("active_requests"), nb::arg("kv_cache_manager") = nb::none(),
            nb::arg("peft_cache_manager") = nb::none(), nb::arg("cross_kv_cache_manager") = nb::none())
        .def("name", [](const C&) { return "CapacityScheduler"; });
}

template <class E>
void bind_schedulers(nb::module_& module) {
    bind_capacity<E>(module);
    using M = EraMicroBatch<E>;
    nb::class_<M>(module, "MicroBatchScheduler")
        .def(
            "__init__",
            [](M* self, std::optional<Chunking> chunking, std::optional<int> longest, State from, State until) {
                new (self) M{{chunking, longest, {from, until}}};
            },
            nb::arg("ctx_chunk_config") = nb::none(), nb::arg("max_context_length") = nb::none(),
            nb::arg("no_schedule_until_state") = State::CONTEXT_INIT,
            nb::arg("no_schedule_after_state") = State::GENERATION_COMPLETE)
        .def(
            "__call__",
            [](const M& self, const RequestList<E>& active, const std::set<RequestId>& in_flight, int max_batch_size,
               std::optional<int> max_num_tokens) {
                const auto answer = self.schedule(bare<E>(active), in_flight, max_batch_size, max_num_tokens);
                return std::make_tuple(pick<E>(active, answer.first), pick<E>(active, answer.second));
            },
            nb::arg("active_requests"), nb::arg("inflight_req_ids"), nb::arg("max_batch_size_runtime"),
            nb::arg("max_num_tokens_runtime").none())
        .def("name", [](const M&) { return "MicroBatchScheduler"; });
}

}  // namespace bound
