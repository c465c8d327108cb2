#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/device_objects.h"
#include "bindings/integers.h"
#include "bindings/repr.h"
#include "bindings/ungilled.h"
#include "staging/copy_engine.h"
#include "staging/offset_route.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

using Stager = Ungilled<OffsetStager>;
using Engine = Ungilled<CopyEngine>;

using LiveTable = nb::ndarray<const std::int32_t, nb::ndim<4>, nb::device::cpu>;

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

void init_stager(Stager* self, std::shared_ptr<Device> device, const std::string& layout_name, std::uint32_t num_pools,
                 std::uint32_t rows_max, std::uint32_t blocks_max, const std::string& mode, std::uint32_t slots,
                 const PerPool& index_scales, const PerPool& kv_offset) {
    const OffsetLayout layout = layout_from(layout_name);
    const StagerConfig config{.layout = layout,
                              .num_pools = num_pools,
                              .rows_max = rows_max,
                              .blocks_max = blocks_max,
                              .slots = slots,
                              .scale = scale_of(layout, num_pools, index_scales, kv_offset)};
    new (self) Stager(std::move(device), config, mode_from(mode));
}

HostTable host_table(const LiveTable& table) {
    if (table.shape(2) != 2 || (table.shape(3) > 1 && table.stride(3) != 1)) {
        throw std::invalid_argument("table is (pools, rows, 2, blocks) with contiguous blocks; dimension 2 is " +
                                    std::to_string(table.shape(2)) + ", the stride of the last is " +
                                    std::to_string(table.stride(3)));
    }
    return {.data = table.data(),
            .pool_stride = static_cast<std::size_t>(table.stride(0)),
            .row_stride = static_cast<std::size_t>(table.stride(1)),
            .plane_stride = static_cast<std::size_t>(table.stride(2)),
            .pools = static_cast<std::uint32_t>(table.shape(0)),
            .rows = static_cast<std::uint32_t>(table.shape(1)),
            .blocks = static_cast<std::uint32_t>(table.shape(3))};
}

// Keeps neither end alive. Its user checks that both ends still exist, and have not moved.
void init_route(OffsetRoute* self, Stager& stager, std::uintptr_t dst_address, std::uint64_t dst_pool_stride,
                std::uint32_t dst_rows, std::uint32_t dst_blocks, const LiveTable& table) {
    const OffsetDestination dst{
        .data = reinterpret_cast<std::int32_t*>(dst_address), .pool_stride = dst_pool_stride, .blocks = dst_blocks};
    new (self) OffsetRoute(stager, dst, dst_rows, host_table(table));
}

// `rows`: row numbers, or how many from the first on.
void ship(const OffsetRoute& self, nb::handle rows, std::uintptr_t stream, std::optional<std::uint32_t> width,
          bool lent) {
    const OffsetRoute::Manner manner{.width = width.value_or(self.width_max()), .stream = {stream}, .lent = lent};
    if (nb::isinstance<nb::int_>(rows)) {
        const auto count = nb::cast<std::size_t>(rows);
        without_gil([&] { self.ship_first(count, manner); });
        return;
    }
    const auto numbers = read_integers<std::uint32_t>(rows, {"rows"});
    without_gil([&] { self.ship(numbers, manner); });
}

// Needs no lock: the configuration never changes, and stats() takes none.
std::string text_of(const OffsetStager& self) {
    const StagerConfig& config = self.config();
    const StagerStats stats = self.stats();
    return Repr("NativeStager")
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
    nb::class_<Stager>(
        m, "NativeStager",
        "Ships block offsets. When a shipment returns, the caller may overwrite everything that it passed.")
        .def("__init__", &init_stager, "device"_a, nb::kw_only(), "layout"_a, "num_pools"_a, "rows_max"_a,
             "blocks_max"_a, "mode"_a = "auto", "slots"_a = 3, "index_scales"_a = nb::none(),
             "kv_offset"_a = nb::none())
        .def("settle", &OffsetStager::settle, nb::call_guard<GilReleased>(),
             "Waits until the caller may write again to the tables that it has lent.")
        .def("stats", &OffsetStager::stats, nb::call_guard<GilReleased>(), "Counts of shipments and of waits.")
        .def("close", &OffsetStager::close, nb::call_guard<GilReleased>(),
             "Waits for pending shipments and gives the memory back. Later shipments raise.")
        .def("__repr__", [](const Stager& stager) { return text_of(stager); });
}

void bind_offset_route(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<OffsetRoute>(m, "OffsetRoute",
                            "The way from one live table to one destination, which both stay where they are.")
        .def("__init__", &init_route, nb::keep_alive<1, 2>(), "stager"_a, "dst_address"_a, "dst_pool_stride"_a,
             "dst_rows"_a, "dst_blocks"_a, "table"_a,
             nb::sig("def __init__(self, stager: NativeStager, dst_address: int, dst_pool_stride: int, dst_rows: int, "
                     "dst_blocks: int, table: numpy.typing.NDArray[Any]) -> None"))
        .def("ship", &ship, "rows"_a, "stream"_a, "width"_a = nb::none(), "lent"_a = false,
             nb::sig("def ship(self, rows: Any, stream: int, width: int | None = None, lent: bool = False) -> None"),
             "rows: row numbers, or how many from the first on. lent: the caller leaves the table as it is until the "
             "stager has settled.")
        .def("__repr__", [](const OffsetRoute& r) {
            return Repr("OffsetRoute")
                .add("pools", r.table().pools)
                .add("rows", r.table().rows)
                .add("dst_rows", r.dst_rows())
                .add("width_max", r.width_max())
                .text();
        });
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
    bind_stager(m);
    bind_offset_route(m);
    bind_copy_engine(m);
}

}  // namespace kvfix::bindings
