#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/device_objects.h"
#include "bindings/integers.h"
#include "bindings/repr.h"
#include "device/device.h"
#include "staging/pinned_memory.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

struct ItemType {
    const char* name;
    nb::dlpack::dtype type;
};

ItemType item_type(const std::string& name) {
    constexpr auto kInt = static_cast<std::uint8_t>(nb::dlpack::dtype_code::Int);
    constexpr auto kUInt = static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt);
    for (const ItemType& known : {ItemType{"int32", {kInt, 32, 1}}, ItemType{"uint32", {kUInt, 32, 1}},
                                  ItemType{"uint8", {kUInt, 8, 1}}, ItemType{"uint64", {kUInt, 64, 1}}}) {
        if (name == known.name) {
            return known;
        }
    }
    throw std::invalid_argument("dtype is '" + name + "'; it is 'int32', 'uint32', 'uint8' or 'uint64'");
}

std::size_t bytes_of(const std::vector<std::size_t>& shape, const std::string& dtype) {
    return std::accumulate(shape.begin(), shape.end(), std::size_t{item_type(dtype).type.bits} / 8,
                           std::multiplies<>());
}

// A live numpy view. It keeps the PinnedArray alive, and so the memory.
nb::object numpy_view(nb::handle_t<PinnedArray> self) {
    const auto& pinned = nb::cast<const PinnedArray&>(self);
    return nb::cast(nb::ndarray<nb::numpy>(pinned.memory->data(), pinned.shape.size(), pinned.shape.data(), self,
                                           nullptr, item_type(pinned.dtype).type));
}

PageScale page_scale(const std::vector<std::int32_t>& scale, const std::vector<std::int32_t>& v_offset) {
    PageScale out{};
    if (scale.size() != v_offset.size() || scale.size() > kPoolsMax) {
        throw std::invalid_argument("scale and v_offset have " + std::to_string(scale.size()) + " and " +
                                    std::to_string(v_offset.size()) + " entries; one per pool, at most " +
                                    std::to_string(kPoolsMax));
    }
    std::copy(scale.begin(), scale.end(), out.scale);
    std::copy(v_offset.begin(), v_offset.end(), out.v_offset);
    return out;
}

void gather_host_rows(Device& device, const DeviceArray& dst, const PinnedArray& table, const PinnedArray& copy_index,
                      std::uint32_t rows, std::uint32_t width, const std::vector<std::int32_t>& scale,
                      const std::vector<std::int32_t>& v_offset, std::uintptr_t stream) {
    if (dst.shape.size() != 4 || table.shape.size() != 4) {
        throw std::invalid_argument("gather_host_rows: dst and table are (pools, rows, 2, blocks)");
    }
    device.launch(
        GatherHostRows{.dst = {.data = reinterpret_cast<std::int32_t*>(dst.memory->address()),
                               .pool_stride = dst.shape[1] * 2 * dst.shape[3],
                               .blocks = static_cast<std::uint32_t>(dst.shape[3])},
                       .table = reinterpret_cast<const std::int32_t*>(table.memory->device_address()),
                       .table_pool_stride = table.shape[1] * 2 * table.shape[3],
                       .table_blocks = static_cast<std::uint32_t>(table.shape[3]),
                       .copy_index = reinterpret_cast<const std::int32_t*>(copy_index.memory->device_address()),
                       .pools = static_cast<std::uint32_t>(table.shape[0]),
                       .rows = rows,
                       .width = width,
                       .scale = page_scale(scale, v_offset)},
        {stream});
}

// Synchronous and in stream order. Copies through pinned memory of its own.
nb::object download(const std::shared_ptr<Device>& device, const DeviceArray& array, std::uintptr_t stream) {
    auto pinned = std::make_unique<Ungilled<PinnedMemory>>(device, array.memory->bytes());
    without_gil([&] {
        device->copy({pinned->address(), array.memory->address(), array.memory->bytes()}, {stream});
        device->synchronize({stream});
    });
    const nb::object numpy = nb::module_::import_("numpy");
    nb::object out = numpy.attr("empty")(nb::cast(array.shape), nb::cast(array.dtype));
    const auto view = nb::cast<nb::ndarray<nb::c_contig, nb::device::cpu>>(out);
    std::memcpy(view.data(), pinned->data(), array.memory->bytes());
    return out;
}

void upload(const std::shared_ptr<Device>& device, const DeviceArray& array,
            const nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>& values, std::uintptr_t stream) {
    if (values.nbytes() != array.memory->bytes()) {
        throw std::invalid_argument("upload: " + std::to_string(values.nbytes()) + " bytes into an array of " +
                                    std::to_string(array.memory->bytes()));
    }
    const Ungilled<PinnedMemory> pinned(device, array.memory->bytes());
    std::memcpy(pinned.data(), values.data(), values.nbytes());
    without_gil([&] {
        device->copy({array.memory->address(), pinned.address(), array.memory->bytes()}, {stream});
        device->synchronize({stream});
    });
}

using DeviceClass = nb::class_<Device>;

void bind_streams(DeviceClass& c) {
    using namespace nb::literals;
    using Nogil = nb::call_guard<GilReleased>;
    c.def(
         "create_stream", [](Device& d) { return d.create_stream().value; }, Nogil(),
         "Returns a handle. Calls that take one also accept a torch stream's number.")
        .def(
            "destroy_stream", [](Device& d, std::uintptr_t stream) { d.destroy_stream({stream}); }, Nogil(), "stream"_a,
            "Gives back a stream that create_stream() made.")
        .def(
            "synchronize", [](Device& d, std::uintptr_t stream) { d.synchronize({stream}); }, Nogil(), "stream"_a,
            "Blocks this thread until the stream has done everything that was enqueued on it.")
        .def(
            "create_event", [](Device& d) { return d.create_event().value; }, Nogil(),
            "Returns a handle for record(), done(), wait() and make_wait().")
        .def(
            "destroy_event", [](Device& d, std::uintptr_t event) { d.destroy_event({event}); }, Nogil(), "event"_a,
            "Gives the event back.")
        .def(
            "record", [](Device& d, std::uintptr_t event, std::uintptr_t stream) { d.record({event}, {stream}); },
            Nogil(), "event"_a, "stream"_a, "Puts the event behind everything that is on the stream so far.")
        .def(
            "done", [](Device& d, std::uintptr_t event) { return d.done({event}); }, Nogil(), "event"_a,
            "Whether the stream is past the event.")
        .def(
            "wait", [](Device& d, std::uintptr_t event) { d.wait({event}); }, Nogil(), "event"_a,
            "Blocks this thread until the stream is past the event.")
        .def_prop_ro("event_waits", &Device::event_waits, "How many of these waits have begun, in all threads.")
        .def(
            "make_wait", [](Device& d, std::uintptr_t stream, std::uintptr_t event) { d.make_wait({stream}, {event}); },
            Nogil(), "stream"_a, "event"_a,
            "Makes whatever is enqueued on the stream from now on wait for the event. Returns at once.")
        .def(
            "close_gate", [](Device& d, std::uintptr_t stream) { return d.close_gate({stream}).value; }, Nogil(),
            "stream"_a, "Holds whatever is enqueued on the stream from now on. Returns a handle.")
        .def(
            "open_gate", [](Device& d, std::uintptr_t gate) { d.open_gate({gate}); }, Nogil(), "gate"_a,
            "Releases the stream that close_gate() holds.");
}

void bind_memory(DeviceClass& c) {
    using namespace nb::literals;
    c.def(
         "pinned",
         [](const std::shared_ptr<Device>& d, std::vector<std::size_t> shape, std::string dtype) {
             auto memory = std::make_shared<Ungilled<PinnedMemory>>(d, bytes_of(shape, dtype));
             return PinnedArray{std::move(memory), std::move(shape), std::move(dtype)};
         },
         "shape"_a, "dtype"_a, "Pinned memory of exactly this size, zeroed.")
        .def(
            "empty",
            [](const std::shared_ptr<Device>& d, std::vector<std::size_t> shape, std::string dtype) {
                auto memory = std::make_shared<Ungilled<DeviceMemory>>(d, bytes_of(shape, dtype));
                return DeviceArray{std::move(memory), std::move(shape), std::move(dtype)};
            },
            "shape"_a, "dtype"_a, "Device memory, freed with the object.")
        .def(
            "outside_captures",
            [](Device& d, const nb::callable& work) {
                nb::object result;
                d.outside_captures([&] { result = work(); });
                return result;
            },
            "work"_a, nb::sig("def outside_captures(self, work: collections.abc.Callable[[], Any]) -> Any"),
            "Returns what `work` returns. Its calls into the driver, to pin memory, say, are allowed while another "
            "thread captures a graph, and leave that graph alone.")
        .def("download", &download, "array"_a, "stream"_a,
             nb::sig("def download(self, array: DeviceArray, stream: int) -> numpy.typing.NDArray[Any]"),
             "Returns the contents as a new numpy array. Waits for the stream.")
        .def("upload", &upload, "array"_a, "values"_a, "stream"_a,
             nb::sig("def upload(self, array: DeviceArray, values: numpy.typing.NDArray[Any], stream: int) -> None"),
             "Fills the array with these values. Waits for the stream.");
}

void bind_copies(DeviceClass& c) {
    using namespace nb::literals;
    using Nogil = nb::call_guard<nb::gil_scoped_release>;
    c.def(
         "copy",
         [](Device& d, std::uintptr_t dst, std::uintptr_t src, std::size_t nbytes, std::uintptr_t stream) {
             without_gil([&] { d.copy({dst, src, nbytes}, {stream}); });
         },
         "dst"_a, "src"_a, "nbytes"_a, "stream"_a, "Copies nbytes bytes. The source is read when the copy executes.")
        .def(
            "copy_batch",
            [](Device& d, nb::handle dst, nb::handle src, nb::handle nbytes, const std::string& order,
               std::uintptr_t stream) {
                const auto spans = read_spans(dst, src, nbytes);
                const SourceOrder source = source_order(order);
                without_gil([&] { d.copy_batch(spans, source, {stream}); });
            },
            "dst"_a, "src"_a, "nbytes"_a, "order"_a, "stream"_a,
            nb::sig("def copy_batch(self, dst: Any, src: Any, nbytes: Any, order: str, stream: int) -> None"),
            "Makes many copies. order: 'stream' reads the sources in stream order, 'any' perhaps earlier.")
        .def(
            "capture_copies",
            [](Device& d, nb::handle dst, nb::handle src, nb::handle nbytes) {
                const auto spans = read_spans(dst, src, nbytes);
                return without_gil([&] { return d.capture_copies(spans).value; });
            },
            "dst"_a, "src"_a, "nbytes"_a, nb::sig("def capture_copies(self, dst: Any, src: Any, nbytes: Any) -> int"),
            "Makes a graph of these copies. Each launch reads the sources anew, when it executes.")
        .def(
            "launch_graph",
            [](Device& d, std::uintptr_t graph, std::uintptr_t stream) { d.launch_graph({graph}, {stream}); }, Nogil(),
            "graph"_a, "stream"_a, "Enqueues the graph.")
        .def(
            "destroy_graph", [](Device& d, std::uintptr_t graph) { d.destroy_graph({graph}); }, Nogil(), "graph"_a,
            "Gives the graph back.")
        .def(
            "fill_words",
            [](Device& d, std::uintptr_t address, std::uint64_t count, std::uint32_t value, std::uintptr_t stream) {
                without_gil(
                    [&] { d.launch(FillWords{reinterpret_cast<std::uint32_t*>(address), count, value}, {stream}); });
            },
            "address"_a, "count"_a, "value"_a, "stream"_a, "Runs a kernel that writes count words of 32 bits.")
        .def("gather_host_rows", &gather_host_rows, "dst"_a, "table"_a, "copy_index"_a, "rows"_a, "width"_a, "scale"_a,
             "v_offset"_a, "stream"_a,
             "Runs upstream's racy V2 kernel, for control arms. It reads table and copy_index when it runs.");
}

}  // namespace

std::vector<CopySpan> read_spans(nb::handle dst, nb::handle src, nb::handle nbytes) {
    const auto to = read_integers<std::uint64_t>(dst, {"dst"});
    const auto from = read_integers<std::uint64_t>(src, {"src"});
    const auto bytes = read_integers<std::uint64_t>(nbytes, {"nbytes"});
    if (to.size() != from.size() || to.size() != bytes.size()) {
        throw std::invalid_argument("dst, src and nbytes have " + std::to_string(to.size()) + ", " +
                                    std::to_string(from.size()) + " and " + std::to_string(bytes.size()) + " entries");
    }
    std::vector<CopySpan> spans(to.size());
    for (std::size_t i = 0; i < spans.size(); ++i) {
        spans[i] = {to[i], from[i], bytes[i]};
    }
    return spans;
}

SourceOrder source_order(const std::string& name) {
    if (name != "stream" && name != "any") {
        throw std::invalid_argument("order is '" + name + "'; it is 'stream' or 'any'");
    }
    return name == "any" ? SourceOrder::any : SourceOrder::stream;
}

void bind_device(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<PinnedArray>(m, "PinnedArray", "Pinned host memory with a shape.")
        .def_prop_ro(
            "address", [](const PinnedArray& a) { return a.memory->address(); },
            "The address of the first byte, on the host.")
        .def_prop_ro(
            "device_address", [](const PinnedArray& a) { return a.memory->device_address(); },
            "The address of the same byte for the device.")
        .def_prop_ro(
            "nbytes", [](const PinnedArray& a) { return a.memory->bytes(); }, "Size of the contents.")
        .def_ro("shape", &PinnedArray::shape, "The number of elements in each dimension.")
        .def_ro("dtype", &PinnedArray::dtype, "The type of an element, as numpy names it.")
        .def_prop_ro("array", &numpy_view, nb::sig("def array(self) -> numpy.typing.NDArray[Any]"), "A live view.")
        .def("__repr__", [](const PinnedArray& a) {
            return Repr("PinnedArray").add("shape", a.shape).add("dtype", a.dtype.c_str()).text();
        });
    nb::class_<DeviceArray>(m, "DeviceArray", "Device memory with a shape.", nb::is_weak_referenceable())
        .def_prop_ro(
            "address", [](const DeviceArray& a) { return a.memory->address(); },
            "The address of the first byte, on the device.")
        .def_prop_ro(
            "nbytes", [](const DeviceArray& a) { return a.memory->bytes(); }, "Size of the contents.")
        .def_ro("shape", &DeviceArray::shape, "The number of elements in each dimension.")
        .def_ro("dtype", &DeviceArray::dtype, "The type of an element, as numpy names it.")
        .def("__repr__", [](const DeviceArray& a) {
            return Repr("DeviceArray").add("shape", a.shape).add("dtype", a.dtype.c_str()).text();
        });
    DeviceClass device(m, "Device", "A GPU, or a simulated one. Calls that take a stream return at once.");
    device.def_prop_ro("name", &Device::name, "The name of the GPU, or of the simulation.")
        .def_prop_ro("simulated", &Device::simulated,
                     "Whether the device is simulated: streams are threads, and its memory is the host's.")
        .def_prop_ro("has_kernels", &Device::has_kernels, "Whether this build has the kernels that this device needs.")
        .def_prop_ro("multiprocessors", &Device::multiprocessors, "The number of multiprocessors.")
        .def_prop_ro("has_batched_copy", &Device::has_batched_copy, "Whether the driver takes many copies in one call.")
        .def("__repr__", [](const Device& d) {
            return Repr("Device").add("name", d.name().c_str()).add("has_kernels", d.has_kernels()).text();
        });
    bind_streams(device);
    bind_memory(device);
    bind_copies(device);
    bind_digest_ring(m, device);
    m.def("open_device", &open_device, nb::call_guard<GilReleased>(), "name"_a = "auto", "seed"_a = 0,
          "Opens 'cpu' (simulated), 'cuda', 'cuda:N', or 'auto': the first GPU if there is one, else 'cpu'.");
}

}  // namespace kvfix::bindings
