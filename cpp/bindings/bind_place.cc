// Where a thread enqueues work, and marks behind what it has enqueued there.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/repr.h"
#include "bindings/ungilled.h"
#include "staging/stream_marks.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

using Place = std::pair<std::shared_ptr<Device>, std::uintptr_t>;  // and a stream of it

// Of this thread alone, if it has said so.
thread_local std::optional<Place> named;

class PlaceOfThread {
  public:
    explicit PlaceOfThread(nb::object find_torch) : find_torch_(std::move(find_torch)) {}

    Place now() {
        if (named.has_value()) {
            return *named;
        }
        const Torch torch = found();
        const nb::object index = torch.current_device();
        return {device_of(index, torch), nb::cast<std::uintptr_t>(torch.stream_of(index))};
    }

  private:
    struct Torch {
        nb::object current_device, stream_of, open;
    };

    Torch found() {
        {
            const nb::ft_lock_guard guard(mutex_);
            if (torch_.open.is_valid()) {
                return torch_;
            }
        }
        const nb::object of_torch = find_torch_();
        const nb::ft_lock_guard guard(mutex_);
        return torch_ = {.current_device = of_torch[0], .stream_of = of_torch[1], .open = of_torch[2]};
    }

    std::shared_ptr<Device> device_of(const nb::object& index, const Torch& torch) {
        const auto at = nb::cast<std::size_t>(index);
        {
            const nb::ft_lock_guard guard(mutex_);
            if (at < devices_.size() && devices_[at] != nullptr) {
                return devices_[at];
            }
        }
        auto opened = nb::cast<std::shared_ptr<Device>>(torch.open(index));
        const nb::ft_lock_guard guard(mutex_);
        devices_.resize(std::max(devices_.size(), at + 1));
        return devices_[at] = std::move(opened);
    }

    const nb::object find_torch_;
    nb::ft_mutex mutex_;  // where there is no GIL
    Torch torch_;
    std::vector<std::shared_ptr<Device>> devices_;
};

// Marks at the places of the thread that records them.
class MarksOfThread : public Ungilled<StreamMarks> {
  public:
    explicit MarksOfThread(nb::object place)
        : place_object_(std::move(place)), place_(nb::cast<PlaceOfThread&>(place_object_)) {}

    void record_here() {
        const auto [device, stream] = place_.now();
        without_gil([&] { record(device, {stream}); });
    }

  private:
    const nb::object place_object_;  // keeps the other
    PlaceOfThread& place_;
};

std::vector<std::uintptr_t> numbers_of(const std::vector<StreamHandle>& streams) {
    std::vector<std::uintptr_t> numbers;
    numbers.reserve(streams.size());
    std::ranges::transform(streams, std::back_inserter(numbers), &StreamHandle::value);
    return numbers;
}

}  // namespace

void bind_place(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<PlaceOfThread>(m, "PlaceOfThread", "Where each thread enqueues work.")
        .def(nb::init<nb::object>(), "find_torch"_a,
             nb::sig("def __init__(self, find_torch: collections.abc.Callable[[], "
                     "tuple[collections.abc.Callable[[], int], collections.abc.Callable[[int], int], "
                     "collections.abc.Callable[[int], Device]]]) -> None"),
             "find_torch: called once, by the first thread that has named no place. Returns what tells torch's current "
             "device, the current stream of a device, and the device behind a number.")
        .def("now", &PlaceOfThread::now, "The place that this thread has named, or else torch's.")
        .def_static(
            "name", [](std::optional<Place> place) { return std::exchange(named, std::move(place)); }, "place"_a.none(),
            "This thread enqueues there from now on. Returns what it had named before.")
        .def("__repr__",
             [](const PlaceOfThread&) { return Repr("PlaceOfThread").add("named", named.has_value()).text(); });
    nb::class_<MarksOfThread>(m, "StreamMarks",
                              "Events behind the work of streams, one for each: a writer that waits for them may "
                              "overwrite what was read up to there. Not for two threads at once.")
        .def(nb::init<nb::object>(), "place"_a, nb::sig("def __init__(self, place: PlaceOfThread) -> None"))
        .def("record", &MarksOfThread::record_here,
             "Moves the mark of this thread's current stream behind everything that is on it.")
        .def(
            "done", [](MarksOfThread& self) { return self.done(); }, nb::call_guard<GilReleased>(),
            "Whether every stream is past its mark.")
        .def(
            "wait", [](MarksOfThread& self) { return std::chrono::duration<double>(self.wait()).count(); },
            nb::call_guard<GilReleased>(),
            "Waits until every stream is past its mark. Returns the seconds; 0 if all were.")
        .def_prop_ro(
            "streams", [](const MarksOfThread& self) { return numbers_of(self.streams()); },
            "Every stream that has a mark.")
        .def("__repr__", [](const MarksOfThread& self) {
            return Repr("StreamMarks").add("streams", self.streams().size()).text();
        });
}

}  // namespace kvfix::bindings
