// Pins as an object that ends them: `with manager.pins(...) as pins:`.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/manager_class.h"
#include "bindings/repr.h"
#include "bindings/strong_numbers.h"
#include "bindings/wide_integers.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

// Python drops its last reference with the GIL held, but ending pins waits for the manager's lock.
class PinHandle : public Pins {
  public:
    explicit PinHandle(Pins&& pins) noexcept : Pins(std::move(pins)) {}
    PinHandle(PinHandle&&) = default;
    PinHandle& operator=(PinHandle&&) = delete;
    PinHandle(const PinHandle&) = delete;
    PinHandle& operator=(const PinHandle&) = delete;
    ~PinHandle() {
        without_gil([this] { end(); });
    }
};

PinHandle pins(BlockManager& self, nb::handle ids, std::optional<RequestId> request_id, nb::handle hashes,
               const std::optional<std::string>& tier, WindowSize window_size, const SequenceRequest* request) {
    if ((ids.is_none() ? 0 : 1) + (request_id ? 1 : 0) + (hashes.is_none() ? 0 : 1) != 1) {
        throw std::invalid_argument("pins: give one of ids, request_id and hashes");
    }
    if (request_id) {
        return PinHandle(without_gil([&] { return self.pins_of(*request_id); }));
    }
    if (!ids.is_none()) {
        const auto blocks = read_ids(ids, {"pins, ids"});
        return PinHandle(without_gil([&] { return self.pins_by_id(blocks); }));
    }
    const auto wanted = read_hashes(hashes, {"pins, hashes"});
    const auto from = tier_from(tier);
    const RequestPtr whose = request != nullptr ? request->request : nullptr;
    return PinHandle(without_gil([&] { return self.pins_by_hash(wanted, from, window_size, whose); }));
}

std::vector<BlockId> ids_of(const PinHandle& pins) {
    std::vector<BlockId> out;
    for (const HeldPin& pin : pins.held()) {
        out.push_back(pin.block_id);
    }
    return out;
}

std::vector<std::pair<SlotIndex, const char*>> slots_of(const PinHandle& pins) {
    std::vector<std::pair<SlotIndex, const char*>> out;
    for (const HeldPin& pin : pins.held()) {
        out.emplace_back(pin.slot, tier_name(pin.tier));
    }
    return out;
}

}  // namespace

void bind_pin_handles(nb::module_& m, ManagerClass& manager) {
    using namespace nb::literals;
    nb::class_<PinHandle>(m, "Pins",
                          "Pinned blocks, which stay where they are until release(), the end of a with block, or the "
                          "end of this object. It may outlive its manager and be released again, which does nothing.")
        .def_prop_ro("ids", &ids_of, "Block ids, in the order in which they were asked for.")
        .def_prop_ro("slots", &slots_of, nb::sig("def slots(self) -> list[tuple[int, str]]"),
                     "The (slot, tier) of each block, as it was pinned.")
        .def_prop_ro("released", &Pins::released, nb::call_guard<GilReleased>(),
                     "Whether this handle has ended the pins.")
        .def("release", &Pins::release, nb::call_guard<GilReleased>(),
             "Ends every pin of this handle, once. Raises ValueError if somebody has unpinned one of the blocks by its "
             "id.")
        .def("__len__", [](const PinHandle& pins) { return pins.held().size(); })
        .def(
            "__enter__", [](PinHandle& pins) -> PinHandle& { return pins; }, nb::rv_policy::reference)
        .def(
            "__exit__",
            [](PinHandle& pins, nb::handle, nb::handle, nb::handle) { without_gil([&] { pins.release(); }); },
            nb::arg("kind").none(), nb::arg("error").none(), nb::arg("traceback").none())
        .def("__repr__", [](const PinHandle& pins) {
            const bool released = without_gil([&] { return pins.released(); });
            return Repr("Pins").add("blocks", pins.held().size()).add("released", released).text();
        });
    manager.def("pins", &pins, "ids"_a = nb::none(), nb::kw_only(), "request_id"_a = nb::none(),
                "hashes"_a = nb::none(), "tier"_a = nb::none(), "window_size"_a = nb::none(), "request"_a = nb::none(),
                nb::sig("def pins(self, ids: Any = None, *, request_id: int | None = None, hashes: Sequence[int] | "
                        "None = None, tier: str | None = None, window_size: int | None = None, request: "
                        "SequenceRequest | None = None) -> Pins"),
                "Pins like pin_blocks_by_id, pin_blocks or find_and_pin_blocks_by_hash, and returns a handle that ends "
                "the pins. With hashes, it stops at the first one that is not found.");
}

}  // namespace kvfix::bindings
