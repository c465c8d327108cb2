#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/strong_numbers.h"
#include "core/block_manager.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

const char* kind_name(TransferKind kind) {
    switch (kind) {
        case TransferKind::offload:
            return "offload";
        case TransferKind::onboard:
            return "onboard";
        case TransferKind::copy:
            return "copy";
    }
    return "";
}

const char* kind_name(EventKind kind) {
    switch (kind) {
        case EventKind::stored:
            return "stored";
        case EventKind::removed:
            return "removed";
        case EventKind::updated:
            return "updated";
    }
    return "";
}

void bind_admission(nb::module_& m) {
    nb::class_<Admission>(m, "Admission", "What one request got; its numbers alone, whatever shared its batch.")
        .def_ro("request_id", &Admission::request_id)
        .def_ro("tokens_reused", &Admission::tokens_reused)
        .def_ro("tokens_new", &Admission::tokens_new)
        .def_ro("blocks_reused", &Admission::blocks_reused)
        .def_ro("blocks_onboarded", &Admission::blocks_onboarded)
        .def_ro("blocks_new", &Admission::blocks_new)
        .def("__repr__", [](const Admission& a) {
            return "Admission(request_id=" + std::to_string(a.request_id) +
                   ", tokens_reused=" + std::to_string(a.tokens_reused) +
                   ", tokens_new=" + std::to_string(a.tokens_new) +
                   ", blocks_reused=" + std::to_string(a.blocks_reused) +
                   ", blocks_onboarded=" + std::to_string(a.blocks_onboarded) +
                   ", blocks_new=" + std::to_string(a.blocks_new) + ")";
        });
    nb::class_<BatchAdmission>(m, "BatchAdmission",
                               "The requests admitted, in order, and the ids of those that did not fit the budget.")
        .def_ro("admitted", &BatchAdmission::admitted)
        .def_ro("deferred", &BatchAdmission::deferred);
    nb::class_<PrefixReuse>(m, "PrefixReuse", "What admitting the request alone, now, would reuse.")
        .def_ro("tokens", &PrefixReuse::tokens)
        .def_ro("blocks_primary", &PrefixReuse::blocks_primary)
        .def_ro("blocks_host", &PrefixReuse::blocks_host);
}

void bind_transfers(nb::module_& m) {
    nb::class_<TransferItem>(m, "TransferItem",
                             "One copy between slots: host to primary, primary to host, or within primary.")
        .def_prop_ro(
            "kind", [](const TransferItem& i) { return kind_name(i.kind); }, nb::sig("def kind(self) -> str"))
        .def_ro("slot_src", &TransferItem::slot_src)
        .def_ro("slot_dst", &TransferItem::slot_dst)
        .def_ro("tokens", &TransferItem::tokens)
        .def_ro("block_id", &TransferItem::block_id)
        .def_ro("window_size", &TransferItem::window_size)
        .def("__repr__", [](const TransferItem& i) {
            return std::string("TransferItem(kind='") + kind_name(i.kind) +
                   "', slot_src=" + std::to_string(number(i.slot_src)) +
                   ", slot_dst=" + std::to_string(number(i.slot_dst)) + ", tokens=" + std::to_string(i.tokens) +
                   ", block_id=" + std::to_string(number(i.block_id)) + ")";
        });
    nb::class_<TransferBatch>(m, "TransferBatch",
                              "Copies in the order in which they must run, and the ticket that ends them.")
        .def_ro("ticket", &TransferBatch::ticket)
        .def_ro("items", &TransferBatch::items)
        .def("__len__", [](const TransferBatch& b) { return b.items.size(); });
    nb::class_<PinnedBlock>(m, "PinnedBlock", "A block that stays where it is until it is unpinned.")
        .def_ro("block_hash", &PinnedBlock::block_hash)
        .def_ro("block_id", &PinnedBlock::block_id)
        .def_ro("slot", &PinnedBlock::slot)
        .def_prop_ro(
            "tier", [](const PinnedBlock& b) { return tier_name(b.tier); }, nb::sig("def tier(self) -> str"))
        .def_ro("window_size", &PinnedBlock::window_size);
}

void bind_events(nb::module_& m) {
    nb::class_<BlockEvent>(
        m, "BlockEvent",
        "A full block was stored, removed, or is now read from another tier or kept at another priority.")
        .def_prop_ro(
            "kind", [](const BlockEvent& e) { return kind_name(e.kind); }, nb::sig("def kind(self) -> str"))
        .def_ro("event_id", &BlockEvent::event_id)
        .def_ro("block_hash", &BlockEvent::block_hash)
        .def_ro("parent_hash", &BlockEvent::parent_hash)
        .def_ro("tokens", &BlockEvent::tokens)
        .def_ro("lora_id", &BlockEvent::lora_id)
        .def_prop_ro(
            "tier", [](const BlockEvent& e) { return tier_name(e.tier); }, nb::sig("def tier(self) -> str"))
        .def_ro("priority", &BlockEvent::priority)
        .def_ro("window_size", &BlockEvent::window_size);
}

}  // namespace

const char* tier_name(Tier tier) { return tier == Tier::primary ? "primary" : "host"; }

std::optional<Tier> tier_from(const std::optional<std::string>& name) {
    if (!name) {
        return std::nullopt;
    }
    if (*name != "primary" && *name != "host") {
        throw std::invalid_argument("tier is '" + *name + "'; it is 'primary', 'host' or None");
    }
    return *name == "primary" ? Tier::primary : Tier::host;
}

void bind_results(nb::module_& m) {
    bind_admission(m);
    bind_transfers(m);
    bind_events(m);
}

}  // namespace kvfix::bindings
