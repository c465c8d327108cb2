#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/device_objects.h"
#include "bindings/integers.h"
#include "bindings/repr.h"
#include "bindings/ungilled.h"
#include "device/sim_device.h"
#include "lanes/crc32c.h"
#include "lanes/host_pool.h"
#include "lanes/transfer_lane.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

using Nogil = nb::call_guard<GilReleased>;
using Pool = Ungilled<HostPool>;
using Lane = Ungilled<TransferLane>;

std::chrono::milliseconds milliseconds(double seconds) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

void init_pool(Pool* self, std::shared_ptr<Device> device, std::size_t host_bytes, std::size_t block_bytes,
               std::size_t tail_bytes, std::size_t piece_bytes_max, std::size_t page_bytes,
               std::optional<unsigned> numa_node, bool huge_pages, bool shared) {
    const HostPoolPlan plan = plan_host_pool(host_bytes, block_bytes, tail_bytes, piece_bytes_max, page_bytes);
    const HostPoolOptions options{.numa_node = numa_node, .huge_pages = huge_pages, .shared = shared};
    new (self) Pool(std::move(device), plan, options);
}

std::vector<std::uint64_t> digests(const Pool& self, nb::handle slots, std::uint64_t key) {
    const auto numbers = read_integers<std::uint64_t>(slots, {"slots"});
    return without_gil([&] { return self.digests(numbers, key); });
}

std::vector<std::uint32_t> crc32c(
    const nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& bytes, nb::handle starts,
    std::size_t length) {
    const auto numbers = read_integers<std::uint64_t>(starts, {"starts"});
    const std::span all{bytes.data(), bytes.size()};
    return without_gil([&] { return crc32c_each(all, numbers, length); });
}

void init_lane(Lane* self, std::shared_ptr<Device> device, const std::string& order, std::size_t queue_max,
               std::size_t in_flight_max, std::uint32_t failures_max, std::size_t streams, std::uint32_t kernel_sms) {
    const LaneConfig config{.queue_max = queue_max,
                            .in_flight_max = in_flight_max,
                            .failures_max = failures_max,
                            .source = source_order(order),
                            .streams = streams,
                            .kernel_sms = kernel_sms};
    new (self) Lane(std::move(device), config);
}

const char* enqueue(Lane& self, std::uint64_t job, nb::handle dst, nb::handle src, nb::handle nbytes,
                    const MarkPtr& after) {
    auto spans = read_spans(dst, src, nbytes);
    switch (without_gil([&] { return self.enqueue(job, std::move(spans), after); })) {
        case LaneAnswer::taken:
            return "taken";
        case LaneAnswer::full:
            return "full";
        case LaneAnswer::broken:
            return "broken";
        case LaneAnswer::closed:
            break;
    }
    return "closed";
}

// The states, spelled as in trtllm_kvfix/offload/ledger.py.
const char* state(const Lane& self, std::uint64_t job) {
    const auto found = without_gil([&] { return self.state(job); });
    if (!found) {
        return nullptr;
    }
    return *found == TransferState::queued ? "queued" : *found == TransferState::in_flight ? "in flight" : "ended here";
}

std::string text_of(const char* name, const LaneStats& stats) {
    return Repr(name)
        .add("queued", stats.queued)
        .add("in_flight", stats.in_flight)
        .add("submitted", stats.submitted)
        .add("failed", stats.failed)
        .add("broken", stats.broken)
        .add("first_error", stats.first_error.c_str())
        .text();
}

void bind_pool(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<Pool>(m, "HostPool", "The memory of the host tier: pinned slots, one after the other.")
        .def("__init__", &init_pool, "device"_a, nb::kw_only(), "host_bytes"_a, "block_bytes"_a, "tail_bytes"_a = 0,
             "piece_bytes_max"_a = std::size_t{1} << 30, "page_bytes"_a = 4096, "numa_node"_a = nb::none(),
             "huge_pages"_a = true, "shared"_a = false)
        .def_prop_ro("address", &HostPool::address, "The address of slot 0.")
        .def_prop_ro(
            "slots", [](const Pool& p) { return p.plan().slots; }, "The number of slots.")
        .def_prop_ro(
            "block_bytes", [](const Pool& p) { return p.plan().block_bytes; },
            "The part of a slot that the device copies.")
        .def_prop_ro(
            "slot_bytes", [](const Pool& p) { return p.plan().slot_bytes; }, "The distance from one slot to the next.")
        .def_prop_ro(
            "bytes", [](const Pool& p) { return p.plan().bytes(); }, "The number of bytes mapped.")
        .def_prop_ro("bytes_pinned", &HostPool::bytes_pinned,
                     "How many of the mapped bytes are registered with the device.")
        .def_prop_ro(
            "pieces", [](const Pool& p) { return p.plan().pieces(); },
            "The number of registrations. No slot lies across two.")
        .def_prop_ro("numa_bound", &HostPool::numa_bound,
                     "Whether the memory lies on the NUMA node that was asked for.")
        .def_prop_ro("descriptor", &HostPool::descriptor,
                     "The file descriptor of the pages if another process may map them, or -1.")
        .def_prop_ro("at_same_address_on_device", &HostPool::at_same_address_on_device,
                     "Whether the device sees the memory at the host's address, as kernels need it.")
        .def("digests", &digests, "slots"_a, "key"_a, nb::sig("def digests(self, slots: Any, key: int) -> list[int]"),
             "A digest of each block's content, in 64 bits. Nothing may write the slots meanwhile.")
        .def("close", &HostPool::close, Nogil(),
             "Gives the memory back. Pieces that the device does not let go of are kept.")
        .def("abandon", &HostPool::abandon, Nogil(),
             "Keeps the memory for good, because the device may still write to it.")
        .def("__repr__", [](const Pool& p) {
            return Repr("HostPool")
                .add("slots", p.plan().slots)
                .add("block_bytes", p.plan().block_bytes)
                .add("bytes_pinned", p.bytes_pinned())
                .add("numa_bound", p.numa_bound())
                .text();
        });
}

void bind_ends(nb::module_& m) {
    nb::class_<EndedTransfer>(m, "EndedTransfer", "How a transfer ended.")
        .def_ro("job", &EndedTransfer::job, "The number that was passed to enqueue().")
        .def_ro("error", &EndedTransfer::error, "What went wrong. Empty: every byte has arrived.")
        .def_ro("bytes", &EndedTransfer::bytes, "How many bytes were to be copied.")
        .def_prop_ro(
            "seconds", [](const EndedTransfer& e) { return static_cast<double>(e.ns) / 1e9; },
            "The time from submission until its end was noticed.")
        .def("__repr__", [](const EndedTransfer& e) {
            return Repr("EndedTransfer").add("job", e.job).add("bytes", e.bytes).add("error", e.error.c_str()).text();
        });
    nb::class_<LaneStats>(m, "LaneStats", "Counts since the lane was made.")
        .def_ro("queued", &LaneStats::queued, "Transfers that wait now.")
        .def_ro("in_flight", &LaneStats::in_flight, "Transfers that the device is running now.")
        .def_ro("submitted", &LaneStats::submitted, "Transfers that were given to the device.")
        .def_ro("failed", &LaneStats::failed, "Transfers of which at least one byte did not arrive.")
        .def_ro("first_error", &LaneStats::first_error, "The error of the first failed transfer.")
        .def_ro("broken", &LaneStats::broken, "Whether the lane has given up, after too many failures in a row.")
        .def_ro("by_kernel", &LaneStats::by_kernel, "Submitted transfers that went by kernel.")
        .def("__repr__", [](const LaneStats& s) { return text_of("LaneStats", s); });
}

void bind_lane(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<Marks::Mark>(m, "Mark", "A point in a stream. It is valid for as long as this object lives.")
        .def("__repr__", [](const Marks::Mark& mark) { return Repr("Mark").add("event", mark.event().value).text(); });
    nb::class_<Marks>(m, "Marks", "Events that mark points in streams. None stands for two points at once.")
        .def(nb::new_([](std::shared_ptr<Device> device, std::size_t marks_max) {
                 return std::make_shared<Marks>(std::move(device), marks_max);
             }),
             "device"_a, nb::kw_only(), "marks_max"_a)
        .def(
            "set", [](Marks& marks, std::uintptr_t stream) { return marks.set({stream}); }, Nogil(), "stream"_a,
            "Marks the end of everything on the stream so far.")
        .def_prop_ro("created", &Marks::created,
                     "How many events were made. Those of marks that are gone are used again.")
        .def("__repr__", [](const Marks& marks) {
            const std::size_t created = without_gil([&] { return marks.created(); });
            return Repr("Marks").add("created", created).add("marks_max", marks.marks_max()).text();
        });
    nb::class_<Lane>(m, "TransferLane", "Runs the transfers of one direction, with a thread and streams of its own.")
        .def("__init__", &init_lane, "device"_a, nb::kw_only(), "order"_a, "queue_max"_a = 256, "in_flight_max"_a = 32,
             "failures_max"_a = 3, "streams"_a = 4, "kernel_sms"_a = 0,
             "streams: how many share the blocks of a transfer by DMA. kernel_sms: multiprocessors for copies by "
             "kernel; 0 copies by DMA.")
        .def("enqueue", &enqueue, "job"_a, "dst"_a, "src"_a, "nbytes"_a, nb::kw_only(), "after"_a = nb::none(),
             nb::sig("def enqueue(self, job: int, dst: Any, src: Any, nbytes: Any, *, after: Mark | None = None) -> "
                     "Literal['taken', 'full', 'broken', 'closed']"),
             "job: the caller's number for the transfer, which may not be in the lane already. The lane keeps the "
             "transfer only if it answers 'taken'.")
        .def("take_ended", &TransferLane::take_ended, Nogil(),
             "Returns each ended transfer once, in the order in which the lane took them.")
        .def("state", &state, "job"_a,
             nb::sig("def state(self, job: int) -> Literal['queued', 'in flight', 'ended here'] | None"),
             "None: the lane never took the transfer, or take_ended() has returned it.")
        .def(
            "wait", [](Lane& lane, std::uint64_t job, double limit_s) { return lane.wait(job, milliseconds(limit_s)); },
            Nogil(), "job"_a, "limit_s"_a,
            "Waits while the transfer is queued or in flight here. False: the limit has passed.")
        .def(
            "close", [](Lane& lane, double limit_s) { return lane.close(milliseconds(limit_s)); }, Nogil(), "limit_s"_a,
            "False: the device has not ended all transfers, so the memory that it was given must be kept.")
        .def("stats", &TransferLane::stats, Nogil(), "Counts of transfers, and the first error.")
        .def("__repr__",
             [](const Lane& lane) { return text_of("TransferLane", without_gil([&] { return lane.stats(); })); });
}

}  // namespace

void bind_offload(nb::module_& m) {
    using namespace nb::literals;
    bind_pool(m);
    bind_ends(m);
    bind_lane(m);
    m.def("crc32c", &crc32c, "bytes"_a, "starts"_a, "length"_a,
          nb::sig("def crc32c(bytes: Any, starts: Any, length: int) -> list[int]"),
          "The CRC-32C of each range of `length` bytes that begins at one of `starts`.");
    m.def(
        "fail_operation",
        [](Device& device, std::uint64_t ordinal) { simulated_device(device).fail_operation(ordinal); }, Nogil(),
        "device"_a, "ordinal"_a, "Makes the ordinal-th operation enqueued from now on fail. For the simulated device.");
    m.def(
        "unplug", [](Device& device) { simulated_device(device).unplug(); }, Nogil(), "device"_a,
        "Makes every operation that has not begun fail, for ever. For the simulated device.");
}

}  // namespace kvfix::bindings
