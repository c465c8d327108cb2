#include "bindings/offset_way.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>

#include "bindings/bindings.h"
#include "bindings/device_objects.h"
#include "bindings/integers.h"
#include "bindings/tensor_memory.h"
#include "staging/table_rows.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

using LiveTable = nb::ndarray<const std::int32_t, nb::ndim<4>, nb::device::cpu>;
using OwnTable = nb::ndarray<std::int32_t, nb::ndim<4>, nb::device::cpu>;
using Shape = std::vector<std::size_t>;

std::string text_of(nb::handle object) { return nb::str(object).c_str(); }

void check_kind(const Shape& shape, const std::string& dtype) {
    if (dtype != "int32" || shape.size() != 4 || shape[2] != 2) {
        throw std::invalid_argument("dst is " + dtype + " of shape " + text_of(nb::tuple(nb::cast(shape))) +
                                    "; expected int32 (pools, rows, 2, blocks)");
    }
}

// "cuda:0" of "cuda:0 NVIDIA H200"
std::string place_of(const Device& device) { return device.name().substr(0, device.name().find(' ')); }

template <class Table>
HostTable read_table(nb::handle table) {
    const bool is_tensor = nb::hasattr(table, "numpy") && nb::hasattr(table, "data_ptr");
    const nb::object array = is_tensor ? table.attr("numpy")() : nb::borrow(table);
    Table live;
    if (!nb::try_cast(array, live, /*convert=*/false)) {
        throw std::invalid_argument("table is " + text_of(array.attr("dtype")) + " with " +
                                    text_of(array.attr("ndim")) +
                                    " dimensions; expected int32 (pools, rows, 2, blocks)");
    }
    if (live.shape(2) != 2 || (live.shape(3) > 1 && live.stride(3) != 1)) {
        throw std::invalid_argument("table is (pools, rows, 2, blocks) with contiguous blocks; dimension 2 is " +
                                    std::to_string(live.shape(2)) + ", the stride of the last is " +
                                    std::to_string(live.stride(3)));
    }
    return {.data = live.data(),
            .pool_stride = static_cast<std::size_t>(live.stride(0)),
            .row_stride = static_cast<std::size_t>(live.stride(1)),
            .plane_stride = static_cast<std::size_t>(live.stride(2)),
            .pools = static_cast<std::uint32_t>(live.shape(0)),
            .rows = static_cast<std::uint32_t>(live.shape(1)),
            .blocks = static_cast<std::uint32_t>(live.shape(3))};
}

std::vector<std::uint32_t>& row_numbers() {
    thread_local std::vector<std::uint32_t> numbers;  // no memory is allocated once it is large enough
    return numbers;
}

void read_range(nb::handle range, std::vector<std::uint32_t>& numbers) {
    const auto start = nb::cast<std::int64_t>(range.attr("start"));
    const auto step = nb::cast<std::int64_t>(range.attr("step"));
    const std::size_t count = nb::len(range);
    for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t row = start + static_cast<std::int64_t>(i) * step;
        if (!std::in_range<std::uint32_t>(row)) {
            throw std::invalid_argument("rows is " + std::to_string(row) + ": 0 to " +
                                        std::to_string(std::numeric_limits<std::uint32_t>::max()));
        }
        numbers.push_back(static_cast<std::uint32_t>(row));
    }
}

std::span<const std::uint32_t> listed_rows(nb::handle rows) {
    std::vector<std::uint32_t>& numbers = row_numbers();
    numbers.clear();
    if (PyRange_Check(rows.ptr())) {
        read_range(rows, numbers);
    } else if (const auto found = host_numbers(rows)) {  // upstream's index mapper makes a tensor for each call
        numbers.assign(found->begin(), found->end());
    } else {
        const bool is_tensor = nb::hasattr(rows, "numpy") && nb::hasattr(rows, "data_ptr");
        numbers = read_integers<std::uint32_t>(is_tensor ? rows.attr("numpy")() : nb::borrow(rows), {"rows"});
    }
    return numbers;
}

}  // namespace

SeenObject::SeenObject(nb::handle object)
    : address_(object.ptr()), reference_(nb::steal(PyWeakref_NewRef(object.ptr(), nullptr))) {
    if (!reference_.is_valid()) {
        throw nb::python_error();
    }
}

bool SeenObject::is(nb::handle object) const { return object.ptr() == address_ && this->object().is(object); }

nb::object SeenObject::object() const {
#if PY_VERSION_HEX >= 0x030D0000 && !defined(Py_LIMITED_API)
    PyObject* now = nullptr;
    return PyWeakref_GetRef(reference_.ptr(), &now) == 1 ? nb::steal(now) : nb::none();
#else
    return nb::borrow(PyWeakref_GetObject(reference_.ptr()));
#endif
}

DeviceTable::DeviceTable(nb::handle dst, const Device& device) {
    if (nb::isinstance<DeviceArray>(dst)) {
        read_array(dst);
        return;
    }
    if (nb::hasattr(dst, "memory") && nb::isinstance<DeviceArray>(dst.attr("memory"))) {
        read_array(dst.attr("memory"));
        return;
    }
    if (!nb::hasattr(dst, "data_ptr")) {
        throw nb::type_error(("dst is " + std::string(nb::type_name(dst.type()).c_str()) +
                              "; expected a CUDA tensor or a native DeviceArray")
                                 .c_str());
    }
    read_tensor(dst, device);
}

void DeviceTable::read_array(nb::handle array) {
    const auto& memory = nb::cast<const DeviceArray&>(array);
    check_kind(memory.shape, memory.dtype);
    pools = static_cast<std::uint32_t>(memory.shape[0]);
    rows = static_cast<std::uint32_t>(memory.shape[1]);
    destination = {.data = reinterpret_cast<std::int32_t*>(memory.memory->address()),
                   .pool_stride = memory.shape[1] * 2 * memory.shape[3],
                   .blocks = static_cast<std::uint32_t>(memory.shape[3])};
}

void DeviceTable::read_tensor(nb::handle tensor, const Device& device) {
    const auto shape = nb::cast<Shape>(tensor.attr("shape"));
    check_kind(shape, dtype_of(tensor));
    if (!nb::cast<bool>(tensor.attr("is_cuda")) || device.simulated() ||
        place_of(device) != "cuda:" + text_of(tensor.attr("device").attr("index"))) {
        throw std::invalid_argument("dst is on " + text_of(tensor.attr("device")) + ", the stager on " + device.name() +
                                    "; make the stager for the tensor's device");
    }
    const auto strides = nb::cast<Shape>(tensor.attr("stride")());
    const std::size_t blocks = shape[3];
    if (strides[1] != 2 * blocks || strides[2] != blocks || strides[3] != 1) {
        throw std::invalid_argument("dst has strides " + text_of(tensor.attr("stride")()) + " for shape " +
                                    text_of(nb::tuple(nb::cast(shape))) + "; rows must be contiguous");
    }
    pools = static_cast<std::uint32_t>(shape[0]);
    rows = static_cast<std::uint32_t>(shape[1]);
    may_move = true;
    destination = {.data = reinterpret_cast<std::int32_t*>(data_ptr(tensor)),
                   .pool_stride = strides[0],
                   .blocks = static_cast<std::uint32_t>(blocks)};
}

OffsetWay::OffsetWay(nb::handle dst, nb::handle table, const Device& device)
    : dst_object_(dst),
      table_object_(table),
      dst_(dst, device),
      table_(read_table<LiveTable>(table)),
      table_may_move_(nb::hasattr(table, "data_ptr")) {
    if (dst_.pools < table_.pools) {
        throw std::invalid_argument("dst has " + std::to_string(dst_.pools) + " pools, the table " +
                                    std::to_string(table_.pools));
    }
}

bool OffsetWay::leads(nb::handle dst, nb::handle table) const {
    return dst_object_.is(dst) && table_object_.is(table) &&
           (!dst_.may_move || data_ptr(dst) == reinterpret_cast<std::uintptr_t>(dst_.destination.data)) &&
           (!table_may_move_ || data_ptr(table) == table_address());
}

void OffsetWay::ship(OffsetStager& stager, std::span<const std::uint32_t> rows, StreamHandle stream,
                     std::optional<std::uint32_t> width, bool lent) const {
    const Shipment shipment{.dst = dst_.destination,
                            .table = table_,
                            .rows = rows,
                            .width = width.value_or(width_max()),
                            .stream = stream,
                            .lent = lent};
    without_gil([&] { stager.ship(shipment, dst_.rows); });
}

std::uint32_t OffsetWay::width_max() const { return std::min(table_.blocks, dst_.destination.blocks); }

std::shared_ptr<const OffsetWay> LastWay::between(nb::handle dst, nb::handle table, const Device& device) {
    std::shared_ptr<const OffsetWay> way;
    {
        const nb::ft_lock_guard guard(mutex_);
        way = way_;
    }
    if (way == nullptr || !way->leads(dst, table)) {
        way = std::make_shared<const OffsetWay>(dst, table, device);
        const nb::ft_lock_guard guard(mutex_);
        way_ = way;
    }
    return way;
}

std::span<const std::uint32_t> read_rows(nb::handle rows, const OffsetStager& stager) {
    return PyLong_CheckExact(rows.ptr()) ? stager.first_rows(read_integer<std::uint32_t>(rows, {"rows"}))
                                         : listed_rows(rows);
}

void copy_pages(nb::handle table, nb::handle rows, nb::handle own) {
    const HostTable from = read_table<LiveTable>(table);
    const HostTable to = read_table<OwnTable>(own);
    const std::span<const std::uint32_t> numbers = listed_rows(rows);
    without_gil([&] { kvfix::copy_pages(from, numbers, to); });
}

}  // namespace kvfix::bindings
