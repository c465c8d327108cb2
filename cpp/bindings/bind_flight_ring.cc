#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <span>
#include <string>

#include "bindings/bindings.h"
#include "bindings/repr.h"
#include "flight/flight_ring.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

using Memory = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::device::cpu, nb::c_contig>;

std::span<std::byte> bytes_of(const Memory& memory) {
    return {reinterpret_cast<std::byte*>(memory.data()), memory.size()};
}

// Keeps the object alive that owns the memory of the ring.
class KeptRing {
  public:
    explicit KeptRing(const Memory& memory) : memory_(memory), ring_(bytes_of(memory)) {}

    void note(std::uint16_t kind, const nb::bytes& text, std::int64_t a, std::int64_t b, std::int64_t c,
              std::int64_t d) {
        ring_.note(kind, {a, b, c, d}, {static_cast<const char*>(text.data()), text.size()});
    }
    void move_to(const Memory& memory) {
        ring_.move_to(bytes_of(memory));
        memory_ = memory;
    }
    void serve_process() { ring_.serve_process(); }
    // Keeps the GIL, which cannot deadlock: every thread that holds the ring's lock holds the GIL too.
    std::string text() const {
        return Repr("FlightRing")
            .add("slots", memory_.size() / FlightRing::kSlotBytes)
            .add("noted", ring_.noted())
            .text();
    }

  private:
    Memory memory_;
    FlightRing ring_;
};

}  // namespace

void bind_flight_ring(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<KeptRing> ring(m, "FlightRing", "The last notes of a process; trtllm_kvfix.metrics.flight reads them.");
    ring.attr("SHIPPED") = static_cast<std::uint16_t>(FlightKind::shipped);
    ring.def(nb::init<const Memory&>(), "memory"_a,
             nb::sig("def __init__(self, memory: numpy.typing.NDArray[Any]) -> None"),
             "memory: zeroed bytes, a whole number of slots.")
        .def("note", &KeptRing::note, "kind"_a, "text"_a, "a"_a = 0, "b"_a = 0, "c"_a = 0, "d"_a = 0,
             "Overwrites the oldest note. Text that is too long is cut off.")
        .def("serve_process", &KeptRing::serve_process, "Native code notes here from now on.")
        .def("move_to", &KeptRing::move_to, "memory"_a,
             nb::sig("def move_to(self, memory: numpy.typing.NDArray[Any]) -> None"),
             "Continues in that memory, with what has been noted so far.")
        .def("__repr__", &KeptRing::text);
}

}  // namespace kvfix::bindings
