#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/device_objects.h"
#include "bindings/repr.h"
#include "staging/digest_ring.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

using Ring = Ungilled<DigestRing>;
using PoolTuple = std::tuple<std::uintptr_t, std::uint64_t, std::uint32_t, std::uint32_t>;

std::shared_ptr<Ring> digest_ring(const std::shared_ptr<Device>& device, std::uintptr_t stream,
                                  const std::vector<PoolTuple>& pools, std::uint32_t places, std::uint64_t key) {
    std::vector<DigestedPool> of_device;
    for (const auto& [address, slot_bytes, layers, parts] : pools) {
        if (layers == 0) {
            throw std::invalid_argument("layers is 0: a block has at least one");
        }
        of_device.push_back({.address = address, .slot_bytes = slot_bytes, .layers = layers, .parts = parts});
    }
    return std::make_shared<Ring>(device, StreamHandle{stream}, of_device, places, key);
}

void send(Ring& ring, nb::handle slots) {
    const auto read = read_integers<std::uint32_t>(slots, {"slots"});
    without_gil([&] { ring.send(read); });
}

nb::list arrived(Ring& ring) {
    std::vector<ArrivedDigests> all;
    without_gil([&] { all = ring.arrived(); });
    const std::size_t layers = ring.layers();
    nb::list found;
    for (const ArrivedDigests& sent : all) {
        nb::list of_blocks;
        for (std::size_t block = 0; block < sent.blocks; ++block) {
            of_blocks.append(nb::bytes(sent.by_layer.data() + block * layers, layers * sizeof(std::uint64_t)));
        }
        found.append(of_blocks);
    }
    return found;
}

}  // namespace

void bind_digest_ring(nb::module_& m, nb::class_<Device>& device) {
    using namespace nb::literals;
    nb::class_<Ring>(m, "DigestRing",
                     "Digests of blocks as the stream's work so far has left them, in a ring of pinned memory. Not for "
                     "two threads at once.")
        .def_prop_ro("free", &Ring::free, "Blocks for which there is room.")
        .def("send", &send, "slots"_a, nb::sig("def send(self, slots: list[int]) -> None"),
             "Runs a kernel that digests the blocks in these slots. There must be room.")
        .def("arrived", &arrived, nb::sig("def arrived(self) -> list[list[bytes]]"),
             "What has arrived since the last call: for each that was sent, 8 bytes of each layer of each block. They "
             "and the layer's bytes add up to its digest.")
        .def(
            "done", [](Ring& ring) { return without_gil([&] { return ring.done(); }); },
            "Whether the device is done with the memory.")
        .def("__repr__", [](const Ring& ring) {
            return Repr("DigestRing")
                .add("places", ring.places())
                .add("free", ring.free())
                .add("layers", ring.layers())
                .text();
        });
    device.def("digest_ring", &digest_ring, "stream"_a, "pools"_a, "places"_a, "key"_a,
               nb::sig("def digest_ring(self, stream: int, pools: list[tuple[int, int, int, int]], places: int, "
                       "key: int) -> DigestRing"),
               "A ring for digests of so many blocks at once. Each pool is an address, the bytes of a block there, the "
               "number of layers that lie in it one behind the other, and in how many parts each is digested. A block "
               "has the same slot in each pool.");
}

}  // namespace kvfix::bindings
