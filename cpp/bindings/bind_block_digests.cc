#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/device_objects.h"
#include "bindings/repr.h"
#include "staging/block_digests.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

using Digests = Ungilled<BlockDigests>;

std::shared_ptr<Digests> block_digests(const std::shared_ptr<Device>& device, std::uintptr_t address,
                                       std::uint64_t slot_bytes, std::uint32_t layers, std::uint32_t parts,
                                       std::uint32_t places, std::uint64_t key) {
    if (layers == 0) {
        throw std::invalid_argument("layers is 0: a block has at least one");
    }
    return std::make_shared<Digests>(device, DigestedPool{address, slot_bytes, layers, parts}, places, key);
}

void launch(Digests& digests, std::uint32_t first, nb::handle slots, std::uintptr_t stream) {
    const auto read = read_integers<std::uint32_t>(slots, {"slots"});
    without_gil([&] { digests.launch(first, read, {stream}); });
}

nb::list read(const Digests& digests, std::uint32_t first, std::uint32_t count) {
    const std::vector<std::uint64_t> by_layer = digests.read(first, count);
    const std::size_t layers = digests.layers();
    nb::list found;
    for (std::size_t block = 0; block < count; ++block) {
        found.append(nb::bytes(by_layer.data() + block * layers, layers * sizeof(std::uint64_t)));
    }
    return found;
}

}  // namespace

void bind_block_digests(nb::module_& m, nb::class_<Device>& device) {
    using namespace nb::literals;
    nb::class_<Digests>(m, "BlockDigests",
                        "Digests of blocks of a pool, at places of pinned memory. A place belongs to the device from a "
                        "launch until it has run.")
        .def("launch", &launch, "first"_a, "slots"_a, "stream"_a,
             nb::sig("def launch(self, first: int, slots: list[int], stream: int) -> None"),
             "Runs a kernel that digests the blocks in these slots, into the places from `first` on.")
        .def("read", &read, "first"_a, "count"_a, nb::sig("def read(self, first: int, count: int) -> list[bytes]"),
             "What it has found: for each block, 8 bytes of each layer. They and the layer's bytes add up to its "
             "digest.")
        .def("__repr__", [](const Digests& d) {
            return Repr("BlockDigests").add("places", d.places()).add("layers", d.layers()).text();
        });
    device.def("block_digests", &block_digests, "address"_a, "slot_bytes"_a, "layers"_a, "parts"_a, "places"_a, "key"_a,
               "Pinned memory for digests of blocks of the pool at this address, `places` at once. A block consists of "
               "`layers` stretches, one behind the other, each digested in `parts`.");
}

}  // namespace kvfix::bindings
