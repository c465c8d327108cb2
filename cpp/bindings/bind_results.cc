#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdio>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/repr.h"
#include "bindings/strong_numbers.h"
#include "bindings/wide_integers.h"
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

std::string hex_of(const BlockHash& hash) {
    std::array<char, 35> text{};
    std::snprintf(text.data(), text.size(), "0x%016llx%016llx", static_cast<unsigned long long>(hash.second),
                  static_cast<unsigned long long>(hash.first));
    return text.data();
}

void bind_admission(nb::module_& m) {
    nb::class_<Admission>(m, "Admission",
                          "What one request got. The numbers are its own, whatever else was in the batch.")
        .def_ro("request_id", &Admission::request_id, "The request.")
        .def_ro("tokens_reused", &Admission::tokens_reused, "Leading tokens of the prompt that need not be computed.")
        .def_ro("tokens_new", &Admission::tokens_new, "Tokens of the prompt that must be computed: at least one.")
        .def_ro("blocks_reused", &Admission::blocks_reused,
                "Blocks claimed, a partial match included, summed over windows.")
        .def_ro("blocks_onboarded", &Admission::blocks_onboarded,
                "Copies from host to primary that were queued for this request.")
        .def_ro("blocks_new", &Admission::blocks_new, "Blocks without any reused token, summed over windows and beams.")
        .def("__repr__", [](const Admission& a) {
            return Repr("Admission")
                .add("request_id", a.request_id)
                .add("tokens_reused", a.tokens_reused)
                .add("tokens_new", a.tokens_new)
                .add("blocks_reused", a.blocks_reused)
                .add("blocks_onboarded", a.blocks_onboarded)
                .add("blocks_new", a.blocks_new)
                .text();
        });
    nb::class_<BatchAdmission>(m, "BatchAdmission",
                               "The requests admitted, in order, and the ids of those that did not fit the budget.")
        .def_ro("admitted", &BatchAdmission::admitted,
                "One result for each request that fits, in the order of the call.")
        .def_ro("deferred", &BatchAdmission::deferred,
                "The first request that would exceed tokens_new_max, and all after it. They are untouched.")
        .def("__repr__", [](const BatchAdmission& b) {
            return Repr("BatchAdmission").add("admitted", b.admitted.size()).add("deferred", b.deferred.size()).text();
        });
    nb::class_<PrefixReuse>(m, "PrefixReuse", "What admitting the request alone, now, would reuse.")
        .def_ro("tokens", &PrefixReuse::tokens, "Tokens that would be reused.")
        .def_ro("blocks_primary", &PrefixReuse::blocks_primary, "Reused blocks that are in primary.")
        .def_ro("blocks_host", &PrefixReuse::blocks_host,
                "Reused blocks that are only in host and would be copied to primary.")
        .def("__repr__", [](const PrefixReuse& r) {
            return Repr("PrefixReuse")
                .add("tokens", r.tokens)
                .add("blocks_primary", r.blocks_primary)
                .add("blocks_host", r.blocks_host)
                .text();
        });
}

void bind_transfers(nb::module_& m) {
    nb::class_<TransferItem>(m, "TransferItem",
                             "One copy between slots: host to primary, primary to host, or within primary.")
        .def_prop_ro(
            "kind", [](const TransferItem& i) { return kind_name(i.kind); }, nb::sig("def kind(self) -> str"),
            "'onboard': host to primary. 'offload': primary to host. 'copy': within primary.")
        .def_ro("slot_src", &TransferItem::slot_src,
                "The slot to read: in host for 'onboard', in primary for the other kinds.")
        .def_ro("slot_dst", &TransferItem::slot_dst,
                "The slot to write: in host for 'offload', in primary for the other kinds.")
        .def_ro("tokens", &TransferItem::tokens,
                "Leading tokens of the block that must be copied; the rest is not used.")
        .def_ro("block_id", &TransferItem::block_id, "The block to which the destination belongs.")
        .def_ro("window_size", &TransferItem::window_size, "The window whose slots these are. None: full attention.")
        .def("__repr__", [](const TransferItem& i) {
            return Repr("TransferItem")
                .add("kind", kind_name(i.kind))
                .add("slot_src", i.slot_src)
                .add("slot_dst", i.slot_dst)
                .add("tokens", i.tokens)
                .add("block_id", i.block_id)
                .text();
        });
    nb::class_<TransferBatch>(m, "TransferBatch",
                              "Copies in the order in which they must run, and the ticket that ends them.")
        .def_ro("ticket", &TransferBatch::ticket,
                "Pass it to complete() or fail(), once. 0: nothing was queued, so neither call is needed.")
        .def_ro("items", &TransferBatch::items,
                "The copies. An offload may have to read a slot before a later item writes it.")
        .def("__len__", [](const TransferBatch& b) { return b.items.size(); })
        .def("__repr__", [](const TransferBatch& b) {
            return Repr("TransferBatch").add("ticket", b.ticket).add("items", b.items.size()).text();
        });
}

std::vector<nb::tuple> extra_tuples(const BlockEvent& event) {
    std::vector<nb::tuple> out;
    for (const BlockExtra& extra : event.extra_keys) {
        out.push_back(nb::make_tuple(extra.begin, extra.end, nb::bytes(extra.digest.data(), extra.digest.size())));
    }
    return out;
}

void bind_events(nb::module_& m) {
    nb::class_<BlockEvent>(m, "BlockEvent", "A full block was stored or removed, or its tier or priority has changed.")
        .def_prop_ro(
            "kind", [](const BlockEvent& e) { return kind_name(e.kind); }, nb::sig("def kind(self) -> str"),
            "'stored', 'removed' or 'updated'.")
        .def_ro("event_id", &BlockEvent::event_id,
                "Counts up by one; a gap means that events were dropped (KvCacheStats.events_dropped).")
        .def_ro("block_hash", &BlockEvent::block_hash,
                "The hash of the block. It covers everything before the block too.")
        .def_ro("parent_hash", &BlockEvent::parent_hash,
                "The hash of the block before this one. None: this is the first.")
        .def_ro("tokens", &BlockEvent::tokens, "For a stored block, its tokens; otherwise empty.")
        .def_ro("tokens_per_block", &BlockEvent::tokens_per_block, "Of the manager.")
        .def_ro("lora_id", &BlockEvent::lora_id, "For a stored block, the adapter of its prefix.")
        .def_prop_ro(
            "salt", [](const BlockEvent& e) { return salt_object(e.salt); },
            nb::sig("def salt(self) -> str | bytes | int | None"), "For a stored block, the salt of its prefix.")
        .def_prop_ro("extra_keys", &extra_tuples, nb::sig("def extra_keys(self) -> list[tuple[int, int, bytes]]"),
                     "Multimodal spans, as offsets from the block's first token.")
        .def_prop_ro(
            "tier", [](const BlockEvent& e) { return tier_name(e.tier); }, nb::sig("def tier(self) -> str"),
            "The tier from which the block is read: 'primary' or 'host'.")
        .def_ro("priority", &BlockEvent::priority, "The block's retention priority.")
        .def_ro("window_size", &BlockEvent::window_size, "The window whose tree holds the block. None: full attention.")
        .def("__repr__", [](const BlockEvent& e) {
            return Repr("BlockEvent")
                .add("kind", kind_name(e.kind))
                .add("event_id", e.event_id)
                .add("block_hash", hex_of(e.block_hash))
                .add("parent_hash", e.parent_hash ? hex_of(*e.parent_hash) : std::string("None"))
                .add("tier", tier_name(e.tier))
                .add("priority", e.priority)
                .add("window_size", e.window_size)
                .text();
        });
}

}  // namespace

nb::object salt_object(const Salt& salt) {
    if (const auto* text = std::get_if<std::string>(&salt)) {
        return nb::cast(*text);
    }
    if (const auto* raw = std::get_if<std::vector<std::uint8_t>>(&salt)) {
        return nb::bytes(raw->data(), raw->size());
    }
    const auto* number = std::get_if<std::int64_t>(&salt);
    return number != nullptr ? nb::cast(*number) : nb::none();
}

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
