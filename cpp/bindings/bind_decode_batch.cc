// Sequences that generate together, as an object that remembers where they are.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/integers.h"
#include "bindings/manager_class.h"
#include "bindings/repr.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

// Python keeps the manager as long as the batch.
struct BatchOfManager {
    BlockManager& manager;
    grow::DecodeBatch batch;
};

BatchOfManager decode_batch(BlockManager& self, nb::handle request_ids) {
    auto ids = read_integers<RequestId>(request_ids, {"decode_batch, request_ids"});
    return {self, without_gil([&] { return self.decode_batch(std::move(ids)); })};
}

void add_tokens(BatchOfManager& self, nb::handle tokens, bool computed) {
    const auto values = read_optional<TokenId>(tokens, "add_tokens, tokens");
    if (!self.manager.add_few_tokens(self.batch, values, computed)) {
        without_gil([&] { self.manager.add_tokens(self.batch, values, computed); });
    }
}

}  // namespace

void bind_decode_batch(nb::module_& m, ManagerClass& manager) {
    using namespace nb::literals;
    nb::class_<BatchOfManager>(
        m, "DecodeBatch",
        "Sequences that generate together, one position a step each. A step costs less than with "
        "BlockManager.add_tokens, because they are looked up again only after a sequence has ended.")
        .def("add_tokens", &add_tokens, "tokens"_a = nb::none(), nb::kw_only(), "computed"_a = false,
             nb::sig("def add_tokens(self, tokens: Any = None, *, computed: bool = False) -> None"),
             "Reserves one more position for each sequence. tokens are their values, in the order of request_ids. With "
             "computed, all positions that the sequences had before this call have their values in the cache by now. "
             "Raises UnknownRequest once one of the sequences has ended.")
        .def_prop_ro(
            "request_ids", [](const BatchOfManager& self) { return self.batch.ids; },
            "The requests, in the order in which they were given.")
        .def("__len__", [](const BatchOfManager& self) { return self.batch.ids.size(); })
        .def("__repr__",
             [](const BatchOfManager& self) { return Repr("DecodeBatch").add("request_ids", self.batch.ids).text(); });
    manager.def("decode_batch", &decode_batch, "request_ids"_a, nb::keep_alive<0, 1>(),
                nb::sig("def decode_batch(self, request_ids: Any) -> DecodeBatch"),
                "The sequences as a batch, for engines that grow the same ones in every step.");
}

}  // namespace kvfix::bindings
