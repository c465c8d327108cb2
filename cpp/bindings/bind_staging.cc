#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/device_objects.h"
#include "bindings/integers.h"
#include "bindings/offset_stager_object.h"
#include "bindings/repr.h"
#include "bindings/ungilled.h"
#include "staging/copy_engine.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

using Engine = Ungilled<CopyEngine>;

OffsetLayout layout_from(const std::string& name) {
    if (name != "v1" && name != "v2") {
        throw std::invalid_argument("layout is '" + name + "'; it is 'v1' or 'v2'");
    }
    return name == "v1" ? OffsetLayout::v1 : OffsetLayout::v2;
}

const char* mode_name(StagerMode mode) {
    switch (mode) {
        case StagerMode::snapshot:
            return "snapshot";
        case StagerMode::early_copy:
            return "early_copy";
        default:
            return "auto";
    }
}

StagerMode mode_from(const std::string& name) {
    for (const StagerMode mode : {StagerMode::automatic, StagerMode::snapshot, StagerMode::early_copy}) {
        if (name == mode_name(mode)) {
            return mode;
        }
    }
    throw std::invalid_argument("mode is '" + name + "'; it is 'auto', 'snapshot' or 'early_copy'");
}

using PerPool = std::optional<std::vector<std::int32_t>>;

PageScale scale_of(OffsetLayout layout, std::uint32_t pools, const PerPool& scales, const PerPool& kv_offset) {
    PageScale out{};
    if (layout == OffsetLayout::v1) {
        if (scales || kv_offset) {
            throw std::invalid_argument(
                "index_scales and kv_offset belong to layout 'v2'; the planes of 'v1' are final");
        }
        return out;
    }
    if (!scales || !kv_offset || scales->size() != pools || kv_offset->size() != pools || pools > kPoolsMax) {
        throw std::invalid_argument("layout 'v2' needs index_scales and kv_offset with one entry for each of " +
                                    std::to_string(pools) + " pools, at most " + std::to_string(kPoolsMax));
    }
    std::copy(scales->begin(), scales->end(), out.scale);
    std::copy(kv_offset->begin(), kv_offset->end(), out.v_offset);
    return out;
}

using DeviceOrName = std::variant<std::shared_ptr<Device>, std::string>;

std::shared_ptr<Device> opened(const DeviceOrName& device) {
    if (const auto* const name = std::get_if<std::string>(&device)) {
        return without_gil([&] { return open_device(*name, 0); });
    }
    return std::get<std::shared_ptr<Device>>(device);
}

void init_stager(StagerObject* self, const std::string& layout_name, std::uint32_t num_pools, std::uint32_t rows_max,
                 std::uint32_t blocks_max, const DeviceOrName& device, const std::string& mode, std::uint32_t slots,
                 const PerPool& index_scales, const PerPool& kv_offset) {
    const OffsetLayout layout = layout_from(layout_name);
    const StagerConfig config{.layout = layout,
                              .num_pools = num_pools,
                              .rows_max = rows_max,
                              .blocks_max = blocks_max,
                              .slots = slots,
                              .scale = scale_of(layout, num_pools, index_scales, kv_offset)};
    new (self) StagerObject(opened(device), config, mode_from(mode));
}

// Needs no lock: the configuration never changes, and stats() takes none.
std::string text_of(const OffsetStager& self) {
    const StagerConfig& config = self.config();
    const StagerStats stats = self.stats();
    return Repr("OffsetStager")
        .add("layout", config.layout == OffsetLayout::v1 ? "v1" : "v2")
        .add("num_pools", config.num_pools)
        .add("rows_max", config.rows_max)
        .add("blocks_max", config.blocks_max)
        .add("mode", mode_name(stats.mode))
        .add("ships", stats.ships)
        .text();
}

TransferId submit(Engine& self, nb::handle dst, nb::handle src, nb::handle nbytes, std::optional<std::uintptr_t> after,
                  std::optional<std::uintptr_t> before, std::uintptr_t stream, const std::string& order) {
    const auto spans = read_spans(dst, src, nbytes);
    CopyOrder ordered{.after = std::nullopt, .before = std::nullopt, .source = source_order(order)};
    if (after) {
        ordered.after = EventHandle{*after};
    }
    if (before) {
        ordered.before = StreamHandle{*before};
    }
    return without_gil([&] { return self.submit(spans, ordered, {stream}); });
}

void bind_stager(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<StagerStats>(m, "StagerStats", "Counts since the stager was made.")
        .def_prop_ro(
            "mode", [](const StagerStats& s) { return mode_name(s.mode); }, nb::sig("def mode(self) -> str"),
            "'snapshot' or 'early_copy', as chosen for this device and table.")
        .def_ro("ships", &StagerStats::ships, "Shipments so far.")
        .def_ro("staged_bytes", &StagerStats::staged_bytes, "Bytes of block offsets that were staged.")
        .def_ro("late_copies", &StagerStats::late_copies,
                "Early copies that came too late, because others used the copy engine.")
        .def_ro("ring_waits", &StagerStats::ring_waits, "Shipments that waited for a slot.")
        .def_prop_ro(
            "wait_us", [](const StagerStats& s) { return static_cast<double>(s.wait_ns) / 1e3; },
            "The total time that they waited.")
        .def("__repr__", [](const StagerStats& s) {
            return Repr("StagerStats")
                .add("mode", mode_name(s.mode))
                .add("ships", s.ships)
                .add("staged_bytes", s.staged_bytes)
                .add("late_copies", s.late_copies)
                .add("ring_waits", s.ring_waits)
                .add("wait_us", static_cast<double>(s.wait_ns) / 1e3)
                .text();
        });
    nb::class_<StagerObject>(m, "OffsetStager",
                             "Ships block offsets. When a shipment returns, the caller may overwrite everything that "
                             "it passed. Any thread may "
                             "ship, on any stream.",
                             nb::is_weak_referenceable())
        .def("__init__", &init_stager, nb::kw_only(), "layout"_a, "num_pools"_a, "rows_max"_a, "blocks_max"_a,
             "device"_a = "auto", "mode"_a = "auto", "slots"_a = 3, "index_scales"_a = nb::none(),
             "kv_offset"_a = nb::none())
        .def("ship", &StagerObject::ship, "dst"_a, "table"_a, "rows"_a, nb::kw_only(), "stream"_a,
             "width"_a = nb::none(), "lent"_a = false,
             nb::sig("def ship(self, dst: Any, table: Any, rows: Any, *, stream: int, width: int | None = None, lent: "
                     "bool = False) -> None"),
             "Row rows[i] of the table goes to row i of dst; the rest of dst stays untouched. dst: int32 (pools, n, 2, "
             "blocks), a CUDA tensor or a DeviceArray. table: a numpy array or a CPU tensor of the same kind. rows: "
             "numbers, or how many from the first on. lent: the caller leaves the table as it is until `settle` "
             "returns, so this call need not wait until it is read.")
        .def("settle", &OffsetStager::settle, nb::call_guard<GilReleased>(),
             "Waits until the caller may write again to the tables that it has lent.")
        .def("stats", &OffsetStager::stats, nb::call_guard<GilReleased>(), "Counts of shipments and of waits.")
        .def("close", &OffsetStager::close, nb::call_guard<GilReleased>(),
             "Waits for pending shipments and gives the memory back. Later shipments raise.")
        .def(
            "__enter__", [](nb::handle self) { return nb::borrow(self); },
            nb::sig("def __enter__(self) -> OffsetStager"))
        .def(
            "__exit__",
            [](StagerObject& self, nb::handle, nb::handle, nb::handle) { without_gil([&] { self.close(); }); },
            "kind"_a.none(), "error"_a.none(), "trace"_a.none())
        .def("__repr__", [](const StagerObject& stager) { return text_of(stager); });
}

void bind_copy_engine(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<Engine>(m, "CopyEngine", "Block copies that are ordered against the streams that compute.")
        .def(nb::init<std::shared_ptr<Device>, std::size_t>(), "device"_a, nb::kw_only(), "transfers_max"_a = 64)
        .def("submit", &submit, "dst"_a, "src"_a, "nbytes"_a, nb::kw_only(), "after"_a = nb::none(),
             "before"_a = nb::none(), "stream"_a, "order"_a = "stream",
             nb::sig("def submit(self, dst: Any, src: Any, nbytes: Any, *, after: int | None = None, before: int | "
                     "None = None, "
                     "stream: int, order: str = 'stream') -> int"),
             "after: an event behind the writers of the sources, or behind the last users of the destinations. before: "
             "a stream that will use the destinations. Returns a number for done() and wait().")
        .def("done", &CopyEngine::done, nb::call_guard<GilReleased>(), "transfer"_a,
             "Whether every byte of the transfer has arrived.")
        .def("wait", &CopyEngine::wait, nb::call_guard<GilReleased>(), "transfer"_a,
             "Blocks this thread until every byte of the transfer has arrived.")
        .def_prop_ro("waits", &CopyEngine::waits, "Submissions that waited because transfers_max were in flight.")
        .def("__repr__", [](const Engine& self) {
            const auto [in_flight, waits] = without_gil([&] { return std::pair(self.in_flight(), self.waits()); });
            return Repr("CopyEngine")
                .add("in_flight", in_flight)
                .add("transfers_max", self.transfers_max())
                .add("waits", waits)
                .text();
        });
}

}  // namespace

void bind_staging(nb::module_& m) {
    using namespace nb::literals;
    m.def("copy_pages", &copy_pages, "table"_a, "rows"_a, "own"_a,
          nb::sig("def copy_pages(table: Any, rows: Any, own: Any) -> None"),
          "Copies the first planes of these rows of a table (pools, rows, 2, blocks) into the first rows of `own`, in "
          "their order. Raises ValueError, with nothing copied, if they do not fit.");
    bind_stager(m);
    bind_copy_engine(m);
}

}  // namespace kvfix::bindings
