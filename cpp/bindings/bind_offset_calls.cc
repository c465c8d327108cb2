// What stands where upstream's own statements ship block offsets. Both take what they know by identity, and leave
// everything else to Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/offset_stager_object.h"
#include "bindings/repr.h"
#include "bindings/tensor_memory.h"
#include "flight/flight_ring.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

void note_shipped(std::size_t rows, const HostTable& table) {
    FlightRing::note_in_process(FlightKind::shipped, {static_cast<std::int64_t>(rows), table.pools});
}

// What counts the faults of a fix (overlay/fuse.py).
class SeenFuse {
  public:
    explicit SeenFuse(nb::object fuse) : fuse_(std::move(fuse)) {}

    bool blown() const {
        static const nb::handle name = interned("blown");
        return nb::cast<bool>(nb::getattr(fuse_, name));
    }
    void succeeded() const {
        static const nb::handle name = interned("in_a_row");
        if (nb::cast<std::int64_t>(nb::getattr(fuse_, name)) != 0) {
            nb::setattr(fuse_, name, nb::int_(0));
        }
    }

  private:
    const nb::object fuse_;
};

// V2's launch. What launches have in common is looked up once: the stager of a table with its scales, and the way to an
// output. A class of Python's derives from it and has `otherwise`.
class OffsetLaunch {
  public:
    OffsetLaunch(nb::object stager_of, nb::object fuse) : stager_of_(std::move(stager_of)), fuse_(std::move(fuse)) {}

    // Ships, or leaves it to `otherwise`, with what has failed.
    nb::object call(nb::handle self, nb::handle input, nb::handle output, nb::handle copy_index,
                    nb::handle index_scales, nb::handle kv_offset, nb::handle stream) {
        nb::object failed = nb::none();
        try {
            if (!fuse_.blown() && ship(input, output, copy_index, index_scales, kv_offset, stream)) {
                fuse_.succeeded();
                return nb::none();
            }
        } catch (...) {
            failed = nb::cpp_function([failure = std::current_exception()] { std::rethrow_exception(failure); });
        }
        return self.attr("otherwise")(failed, input, output, copy_index, index_scales, kv_offset, stream);
    }
    std::size_t known() const {
        const nb::ft_lock_guard guard(mutex_);
        return known_.size();
    }

    void note_launch(std::uintptr_t address) { launched_to_ = address; }
    bool take_launch(std::uintptr_t address) { return launched_to_.compare_exchange_strong(address, 0); }

  private:
    // Returns false if it has shipped nothing.
    bool ship(nb::handle input, nb::handle output, nb::handle copy_index, nb::handle index_scales, nb::handle kv_offset,
              nb::handle stream) {
        const KnownPtr known = find(input, output, index_scales, kv_offset);
        const nb::object kept = known == nullptr ? nb::none() : known->stager_reference();
        if (kept.is_none()) {
            return false;
        }
        auto& stager = nb::cast<StagerObject&>(kept);
        const auto rows = read_rows(copy_index, stager);
        known->way.ship(stager, rows, {nb::cast<std::uintptr_t>(stream)});
        note_launch(reinterpret_cast<std::uintptr_t>(known->way.destination().destination.data));
        note_shipped(rows.size(), known->way.table());
        return true;
    }

    static constexpr std::size_t kKnownMax = 16;  // a server has a table for its model, and one for the draft's

    struct Known {
        SeenObject input, index_scales, kv_offset;
        nb::object stager_reference;  // weak: a stager goes with its table
        OffsetWay way;

        bool leads(nb::handle from, nb::handle to, nb::handle scales, nb::handle offset) const {
            return input.is(from) && index_scales.is(scales) && kv_offset.is(offset) && way.leads(to, from);
        }
    };
    using KnownPtr = std::shared_ptr<const Known>;

    KnownPtr find(nb::handle input, nb::handle output, nb::handle index_scales, nb::handle kv_offset) {
        // Tensors may run Python, and another thread may come here meanwhile.
        for (std::size_t i = 0; KnownPtr each = known_at(i); ++i) {
            if (each->leads(input, output, index_scales, kv_offset)) {
                return each;
            }
        }
        const nb::object stager = stager_of_(input, index_scales, kv_offset);
        if (stager.is_none()) {
            return nullptr;
        }
        auto made =
            std::make_shared<const Known>(Known{SeenObject(input), SeenObject(index_scales), SeenObject(kv_offset),
                                                nb::steal(PyWeakref_NewRef(stager.ptr(), nullptr)),
                                                OffsetWay(output, input, nb::cast<StagerObject&>(stager).device())});
        const nb::ft_lock_guard guard(mutex_);
        known_.insert(known_.begin(), made);
        known_.resize(std::min(known_.size(), kKnownMax));
        return made;
    }
    KnownPtr known_at(std::size_t at) const {
        const nb::ft_lock_guard guard(mutex_);
        return at < known_.size() ? known_[at] : nullptr;
    }

    std::atomic<std::uintptr_t> launched_to_ = 0;  // the output of the last launch, until somebody asks
    const nb::object stager_of_;
    const SeenFuse fuse_;
    mutable nb::ft_mutex mutex_;   // where there is no GIL
    std::vector<KnownPtr> known_;  // guarded by either
};

// Where a copy goes that upstream's V1 asks for: [pool, :rows], [:, :rows], either with [..., :, :width] behind.
struct PoolIndex {
    std::optional<std::uint32_t> pool;  // all of them, if unset
    std::uint32_t rows;
    std::optional<std::uint32_t> width;
};

// A slice from the beginning, in steps of one.
struct Head {
    bool is_whole;
    std::uint32_t stop;
};

std::optional<std::uint32_t> small_number(PyObject* number) {
    if (!PyLong_CheckExact(number)) {
        return std::nullopt;
    }
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    return overflow == 0 && std::in_range<std::uint32_t>(value) ? std::optional(static_cast<std::uint32_t>(value))
                                                                : std::nullopt;
}

std::optional<Head> head_of(PyObject* index) {
    Py_ssize_t start = 0;
    Py_ssize_t stop = 0;
    Py_ssize_t step = 0;
    if (!PySlice_Check(index)) {
        return std::nullopt;
    }
    if (PySlice_Unpack(index, &start, &stop, &step) != 0) {
        throw nb::python_error();
    }
    const bool is_whole = stop == PY_SSIZE_T_MAX;
    if (start != 0 || step != 1 || (!is_whole && !std::in_range<std::uint32_t>(stop))) {
        return std::nullopt;
    }
    return Head{.is_whole = is_whole, .stop = is_whole ? 0 : static_cast<std::uint32_t>(stop)};
}

std::optional<PoolIndex> pool_index(nb::handle index) {
    if (!PyTuple_CheckExact(index.ptr())) {
        return std::nullopt;
    }
    const Py_ssize_t size = PyTuple_Size(index.ptr());
    const auto at = [&](Py_ssize_t i) { return PyTuple_GetItem(index.ptr(), i); };
    if (size < 2 || size > 4) {
        return std::nullopt;
    }
    const auto rows = head_of(at(1));
    const auto planes = size > 2 ? head_of(at(2)) : Head{.is_whole = true, .stop = 0};
    const auto blocks = size > 3 ? head_of(at(3)) : Head{.is_whole = true, .stop = 0};
    if (!rows || rows->is_whole || !planes || !planes->is_whole || !blocks) {
        return std::nullopt;
    }
    PoolIndex found{.pool = small_number(at(0)), .rows = rows->stop, .width = std::nullopt};
    if (!blocks->is_whole) {
        found.width = blocks->stop;
    }
    const auto pools = head_of(at(0));
    return found.pool || (pools && pools->is_whole) ? std::optional(found) : std::nullopt;
}

bool fits(const PoolIndex& index, const HostTable& table, const DeviceTable& destination) {
    const std::uint32_t blocks = destination.destination.blocks;
    return index.rows <= destination.rows && index.width.value_or(table.blocks) <= table.blocks &&
           (index.width ? *index.width <= blocks : table.blocks == blocks) &&
           (index.pool || table.pools == destination.pools);
}

// How the table lies where a copy takes its own place out of it.
TensorLayout layout_in(const HostTable& table, const PoolIndex& index) {
    const TensorLayout whole{
        .dimensions = 4,
        .sizes = {table.pools, index.rows, 2, index.width.value_or(table.blocks)},
        .strides = {static_cast<std::int64_t>(table.pool_stride), static_cast<std::int64_t>(table.row_stride),
                    static_cast<std::int64_t>(table.plane_stride), 1}};
    if (!index.pool) {
        return whole;
    }
    return {.dimensions = 3,
            .sizes = {whole.sizes[1], whole.sizes[2], whole.sizes[3]},
            .strides = {whole.strides[1], whole.strides[2], whole.strides[3]}};
}

// The device tensor in the place of V1's, the copies that upstream makes of the table's pools, one after the other, and
// what of them has not been shipped. Between calls of upstream's it keeps nothing alive. A class of Python's derives
// from it and has `otherwise`.
class PoolCopies {
  public:
    PoolCopies(const nb::object& tensor, const nb::object& table, const nb::object& stager, nb::object stream_of,
               nb::object fuse, bool lends)
        : seen_{.tensor = SeenObject(tensor),
                .table = SeenObject(table),
                .stager = stager.is_none() ? std::nullopt : std::optional<SeenObject>(stager)},
          stream_of_(std::move(stream_of)),
          fuse_(std::move(fuse)),
          lends_(lends),
          tensor_(tensor),
          table_(table),
          stager_(stager) {}

    // The table is about to be filled: nothing reads it any more, and nothing of an earlier call is left.
    void begin() {
        failed = false;
        taken_ = 0;
        shipped_ = false;
        tensor_ = seen_.tensor.object();
        table_ = seen_.table.object();
        stager_ = seen_.stager ? seen_.stager->object() : nb::none();
        settle();
    }
    void end() {
        if (!failed) {
            fuse_.succeeded();
        }
        tensor_ = table_ = stager_ = nb::none();
    }
    void settle() {
        if (lends_ && !stager_.is_none() && stager().has_lent()) {
            without_gil([&stager = stager()] { stager.settle(); });
        }
    }
    // Takes a copy out of its own place in the table, and ships when it has those of all pools. Returns false if it is
    // anything else. If it throws, it has not taken the copy.
    bool take(nb::handle index, nb::handle source) {
        const auto where = stager_.is_none() ? std::nullopt : pool_index(index);
        if (!where || !is_next(*where)) {
            return false;
        }
        const auto way = way_.between(tensor_, table_, stager().device());
        const HostTable& from = way->table();
        if (!fits(*where, from, way->destination())) {
            return false;  // upstream's statement says that they do not fit
        }
        const std::uint32_t pools = where->pool ? 1 : from.pools;
        const std::size_t offset = std::size_t{taken_} * from.pool_stride * sizeof(std::int32_t);
        if (!is_view(source, way->table_address() + offset, layout_in(from, *where))) {
            return false;
        }
        if (taken_ + pools == from.pools) {
            ship(*way, *where);
            taken_ = 0;
        } else {
            taken_ += pools;
        }
        last_ = *where;
        return true;
    }
    // The pools that were taken and not shipped, the rows of each, and their width.
    nb::tuple taken() const { return nb::make_tuple(taken_, last_.rows, last_.width); }
    bool lends() const { return lends_; }
    bool has_taken() const { return taken_ != 0; }
    void drop_taken() { taken_ = 0; }
    // Rows and width of this call's shipment, or nothing.
    nb::object shipped() const { return shipped_ ? nb::object(nb::make_tuple(last_.rows, last_.width)) : nb::none(); }
    void raise_failure() {
        if (const std::exception_ptr failure = std::exchange(failure_, nullptr)) {
            std::rethrow_exception(failure);
        }
    }
    void copy(nb::handle self, nb::handle index, nb::handle source, bool non_blocking) {
        try {
            // A copy that its caller waits for needs no staging.
            if (!failed && non_blocking && take(index, source)) {
                return;
            }
        } catch (...) {
            failure_ = std::current_exception();
        }
        self.attr("otherwise")(index, source, non_blocking);
    }

    // Also between calls, for whoever has kept this in the tensor's place.
    nb::object tensor() const { return tensor_.is_none() ? seen_.tensor.object() : tensor_; }
    nb::object table() const { return table_.is_none() ? seen_.table.object() : table_; }
    bool failed = false;  // in this call: what is left of it waits

  private:
    StagerObject& stager() const { return nb::cast<StagerObject&>(stager_); }
    bool is_next(const PoolIndex& index) const {
        const bool begins = taken_ == 0 && index.pool.value_or(0) == 0;
        const bool continues =
            taken_ != 0 && index.pool == taken_ && index.rows == last_.rows && index.width == last_.width;
        return begins || continues;
    }
    void ship(const OffsetWay& way, const PoolIndex& index) {
        const auto told = current_stream(tensor_);
        const auto stream = told ? *told : nb::cast<std::uintptr_t>(stream_of_());
        way.ship(stager(), stager().first_rows(index.rows), {stream}, index.width, lends_);
        shipped_ = true;
        note_shipped(index.rows, way.table());
    }

    struct Seen {
        SeenObject tensor, table;
        std::optional<SeenObject> stager;
    };
    const Seen seen_;
    const nb::object stream_of_;
    const SeenFuse fuse_;
    const bool lends_;
    nb::object tensor_, table_, stager_;  // None between calls
    LastWay way_;
    std::uint32_t taken_ = 0;  // pools
    PoolIndex last_{};         // of the copy that was taken last
    bool shipped_ = false;     // in this call
    std::exception_ptr failure_;
};

// What stands in the place of each device tensor, by the table that is copied to it.
class PoolCopiesByTensor {
  public:
    explicit PoolCopiesByTensor(nb::object make) : make_(std::move(make)) {}

    nb::object of(nb::handle tensor, nb::handle table) {
        {
            const nb::ft_lock_guard guard(mutex_);
            for (const Known& each : known_) {
                if (each.tensor.is(tensor) && each.table.is(table)) {
                    return each.copies;
                }
            }
        }
        Known made{.tensor = SeenObject(tensor), .table = SeenObject(table), .copies = make_(tensor, table)};
        std::vector<Known> gone;  // dropped without the lock
        const nb::ft_lock_guard guard(mutex_);
        const auto first_gone = std::ranges::partition(known_, [](const Known& each) {
                                    return !each.tensor.object().is_none() && !each.table.object().is_none();
                                }).begin();
        gone.assign(std::make_move_iterator(first_gone), std::make_move_iterator(known_.end()));
        known_.erase(first_gone, known_.end());
        return known_.emplace_back(std::move(made)).copies;
    }
    std::size_t known() const {
        const nb::ft_lock_guard guard(mutex_);
        return known_.size();
    }

  private:
    struct Known {
        SeenObject tensor, table;
        nb::object copies;
    };

    const nb::object make_;
    mutable nb::ft_mutex mutex_;  // where there is no GIL
    std::vector<Known> known_;    // guarded by either
};

// A call of upstream's V1 method, with what stands in the place of its tensor. Every crossing between Python and native
// code costs most where other work has filled the caches, so there is one for all that surrounds the method.
class CopyingCall {
  public:
    CopyingCall(nb::handle_t<PoolCopiesByTensor> copies_of, nb::object fuse, nb::object blocking, nb::object finish,
                bool finish_every)
        : copies_of_(nb::borrow(copies_of)),
          fuse_(std::move(fuse)),
          blocking_(std::move(blocking)),
          finish_(std::move(finish)),
          finish_every_(finish_every) {}

    // What upstream raises passes through, and ends the copies all the same.
    nb::object call(const nb::object& original, nb::handle owner, nb::handle tensor, nb::handle table,
                    const nb::tuple& others, const nb::dict& keywords) const {
        nb::object failed = nb::none();
        const nb::object copies = begun(tensor, table, failed);
        if (!copies.is_valid()) {
            return called(original, owner, blocking_(failed, tensor, table), others, keywords);
        }
        static const nb::handle end = interned("end");
        nb::object result;
        try {
            result = called(original, owner, copies, others, keywords);
            if (finish_every_ || nb::cast<PoolCopies&>(copies).has_taken()) {
                finish_(copies);
            }
        } catch (...) {
            copies.attr(end)();
            throw;
        }
        copies.attr(end)();
        return result;
    }
    bool finishes_every() const { return finish_every_; }

  private:
    // Nothing while the fuse is blown, or if it fails. When this returns, the table may be filled.
    nb::object begun(nb::handle tensor, nb::handle table, nb::object& failed) const {
        static const nb::handle begin = interned("begin");
        try {
            if (!fuse_.blown()) {
                nb::object copies = nb::cast<PoolCopiesByTensor&>(copies_of_).of(tensor, table);
                copies.attr(begin)();
                return copies;
            }
        } catch (...) {
            failed = nb::cpp_function([failure = std::current_exception()] { std::rethrow_exception(failure); });
        }
        return {};
    }
    static nb::object called(const nb::object& original, nb::handle owner, nb::handle tensor, const nb::tuple& others,
                             const nb::dict& keywords) {
        return original(owner, tensor, *others, **keywords);
    }

    const nb::object copies_of_;
    const SeenFuse fuse_;
    const nb::object blocking_, finish_;
    const bool finish_every_;
};

// destination[index], which upstream calls `copy_` of.
struct PoolSelection {
    nb::object copies, index;
};

nb::object copy_to(nb::handle self, nb::handle source, bool non_blocking) {
    const auto& selection = nb::cast<const PoolSelection&>(self);
    nb::cast<PoolCopies&>(selection.copies).copy(selection.copies, selection.index, source, non_blocking);
    return nb::borrow(self);
}

void bind_device_table(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<DeviceTable>(m, "DeviceTable", "Where a tensor that attention reads is, and how it is laid out.")
        .def(nb::init<nb::handle, const Device&>(), "dst"_a, "device"_a,
             nb::sig("def __init__(self, dst: Any, device: Device) -> None"),
             "Raises TypeError or ValueError unless dst is int32 (pools, rows, 2, blocks) on the device.")
        .def_prop_ro(
            "address", [](const DeviceTable& t) { return reinterpret_cast<std::uintptr_t>(t.destination.data); },
            "Of its first byte.")
        .def_prop_ro(
            "pool_stride", [](const DeviceTable& t) { return t.destination.pool_stride; },
            "Elements from one pool to the next.")
        .def_ro("rows", &DeviceTable::rows, "Of a pool.")
        .def_prop_ro(
            "blocks", [](const DeviceTable& t) { return t.destination.blocks; }, "Of a plane of a row.")
        .def("__repr__", [](const DeviceTable& t) {
            return Repr("DeviceTable").add("rows", t.rows).add("blocks", t.destination.blocks).text();
        });
}

void bind_launch(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<OffsetLaunch>(m, "OffsetLaunch", "V2's launch, from a live table and an index that others write.")
        .def(nb::init<nb::object, nb::object>(), "stager_of"_a, "fuse"_a,
             nb::sig("def __init__(self, stager_of: collections.abc.Callable[[Any, Any, Any], OffsetStager | None], "
                     "fuse: Any) -> None"),
             "stager_of: the stager of a table, its scales and its V offsets, if it has one. "
             "fuse: while it is blown, nothing is shipped.")
        .def(
            "__call__",
            [](nb::handle self, nb::handle input, nb::handle output, nb::handle copy_index, nb::handle index_scales,
               nb::handle kv_offset, nb::handle stream) {
                return nb::cast<OffsetLaunch&>(self).call(self, input, output, copy_index, index_scales, kv_offset,
                                                          stream);
            },
            "input"_a, "output"_a, "copy_index"_a, "index_scales"_a, "kv_offset"_a, "stream"_a,
            nb::sig("def __call__(self, input: Any, output: Any, copy_index: Any, index_scales: Any, kv_offset: Any, "
                    "stream: Any) -> Any"),
            "When this returns, all arguments may be written again. Calls `otherwise` with what raises the failure, or "
            "None, and the same arguments, if nothing was shipped.")
        .def(
            "__call__",
            [](nb::handle self, const nb::args& args, const nb::kwargs& kwargs) {
                return self.attr("unknown")(*args, **kwargs);
            },
            nb::sig("def __call__(self, *args: Any, **kwargs: Any) -> Any"), "With other arguments it calls `unknown`.")
        .def("note_launch", &OffsetLaunch::note_launch, "address"_a,
             "A launch has been made to the output at this address.")
        .def("take_launch", &OffsetLaunch::take_launch, "address"_a,
             "Whether the last launch went to the output at this address, and nobody has asked since.")
        .def("__repr__",
             [](const OffsetLaunch& self) { return Repr("OffsetLaunch").add("known", self.known()).text(); });
}

void bind_pool_copies(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<PoolSelection>(m, "PoolSelection", "Where a copy goes.")
        .def("copy_", &copy_to, "source"_a, "non_blocking"_a = false,
             nb::sig("def copy_(self, source: Any, non_blocking: bool = False) -> PoolSelection"),
             "When this returns, the source may be written again, or after `begin` if the table is lent.")
        .def("__repr__",
             [](const PoolSelection& self) { return Repr("PoolSelection").add("index", shown(self.index)).text(); });
    nb::class_<PoolCopies>(m, "PoolCopies",
                           "A device tensor to which V1 copies its table pool by pool. Whatever else is copied goes to "
                           "`otherwise(index, source, non_blocking)` of a derived class.")
        .def(nb::init<const nb::object&, const nb::object&, const nb::object&, nb::object, nb::object, bool>(),
             "tensor"_a, "table"_a, "stager"_a.none(), "stream_of"_a, "fuse"_a, nb::kw_only(), "lends"_a,
             nb::sig("def __init__(self, tensor: Any, table: Any, stager: OffsetStager | None, stream_of: "
                     "collections.abc.Callable[[], int], fuse: Any, *, lends: bool) -> None"),
             "It has begun. fuse: what counts faults in a row. lends: the code that fills the table calls `begin` "
             "first.")
        .def_prop_ro(
            "tensor", [](const PoolCopies& self) { return self.tensor(); }, nb::sig("def tensor(self) -> Any"),
            "Where the copies go.")
        .def_prop_ro(
            "table", [](const PoolCopies& self) { return self.table(); }, nb::sig("def table(self) -> Any"),
            "Where they come from.")
        .def_prop_ro("lends", &PoolCopies::lends, "Whether a copy may read the table until `begin` is called.")
        .def_prop_ro(
            "failed", [](const PoolCopies& self) { return self.failed; }, "In this call: nothing more is taken.")
        .def(
            "fail", [](PoolCopies& self) { self.failed = true; }, "Take nothing more in this call.")
        .def("begin", &PoolCopies::begin,
             "Call before the table is filled: when this returns, nothing reads it any more.")
        .def("end", &PoolCopies::end,
             "Call behind upstream's method: unless this call has failed, the fuse counts from 0 again.")
        .def_prop_ro("has_taken", &PoolCopies::has_taken, "Whether copies were taken and not shipped.")
        .def_prop_ro("taken", &PoolCopies::taken, nb::sig("def taken(self) -> tuple[int, int, int | None]"),
                     "The pools that were taken and not shipped, their rows, and their blocks if not all.")
        .def("drop_taken", &PoolCopies::drop_taken, "They have been copied.")
        .def_prop_ro("shipped", &PoolCopies::shipped, nb::sig("def shipped(self) -> tuple[int, int | None] | None"),
                     "Rows, and blocks if not all, of this call's shipment.")
        .def("raise_failure", &PoolCopies::raise_failure, "Raises what has kept the last copy from being taken.")
        .def(
            "__getitem__",
            [](nb::handle self, nb::object index) { return PoolSelection{nb::borrow(self), std::move(index)}; },
            "index"_a, nb::sig("def __getitem__(self, index: Any, /) -> PoolSelection"))
        .def("__repr__", [](const PoolCopies& self) {
            return Repr("PoolCopies").add("failed", self.failed).add("has_taken", self.has_taken()).text();
        });
}

void bind_pool_calls(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<PoolCopiesByTensor>(m, "PoolCopiesByTensor",
                                   "What stands in the place of each device tensor, made once for it and a table. "
                                   "It keeps neither of them alive.")
        .def(nb::init<nb::object>(), "make"_a,
             nb::sig("def __init__(self, make: collections.abc.Callable[[Any, Any], PoolCopies]) -> None"),
             "make: for a tensor and a table.")
        .def("__call__", &PoolCopiesByTensor::of, "tensor"_a, "table"_a,
             nb::sig("def __call__(self, tensor: Any, table: Any) -> Any"))
        .def("__repr__", [](const PoolCopiesByTensor& self) {
            return Repr("PoolCopiesByTensor").add("known", self.known()).text();
        });
    nb::class_<CopyingCall>(m, "CopyingCall", "Calls of V1's method, with what stands in the place of its tensor.")
        .def(nb::init<nb::handle_t<PoolCopiesByTensor>, nb::object, nb::object, nb::object, bool>(), "copies_of"_a,
             "fuse"_a, nb::kw_only(), "blocking"_a, "finish"_a, "finish_every"_a,
             nb::sig("def __init__(self, copies_of: PoolCopiesByTensor, fuse: Any, *, blocking: "
                     "collections.abc.Callable[[collections.abc.Callable[[], None] | None, Any, Any], Any], finish: "
                     "collections.abc.Callable[[Any], None], finish_every: bool) -> None"),
             "copies_of: what stands in the tensor's place. fuse: while it is blown, nothing does. blocking: what does "
             "then, and where ours fails; it is called with what raises the failure, or None, the tensor and the "
             "table. finish: called behind the method if it has left copies, or every time.")
        .def("__call__", &CopyingCall::call, "original"_a, "owner"_a, "tensor"_a, "table"_a.none(), "others"_a,
             "keywords"_a,
             nb::sig("def __call__(self, original: collections.abc.Callable[..., Any], owner: Any, tensor: Any, table: "
                     "Any, others: tuple[Any, ...], keywords: dict[str, Any]) -> Any"),
             "Calls the original with the owner, what stands in the tensor's place, and the others.")
        .def("__repr__", [](const CopyingCall& self) {
            return Repr("CopyingCall").add("finish_every", self.finishes_every()).text();
        });
}

}  // namespace

void bind_offset_calls(nb::module_& m) {
    bind_device_table(m);
    bind_launch(m);
    bind_pool_copies(m);
    bind_pool_calls(m);
}

}  // namespace kvfix::bindings
