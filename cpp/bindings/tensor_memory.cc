#include "bindings/tensor_memory.h"

#include <nanobind/ndarray.h>

#include <array>
#include <limits>
#include <string>
#include <utility>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

nb::object called(nb::handle object, nb::handle method) {
    std::array<PyObject*, 2> stack{nullptr, object.ptr()};
    nb::object result =
        nb::steal(PyObject_VectorcallMethod(method.ptr(), &stack[1], 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
    if (!result.is_valid()) {
        throw nb::python_error();
    }
    return result;
}

std::uint64_t unsigned_of(const nb::object& number) {
    const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
    if (value == std::numeric_limits<unsigned long long>::max() && PyErr_Occurred() != nullptr) {
        throw nb::python_error();
    }
    return value;
}

std::size_t numel(nb::handle tensor) {
    static const nb::handle name = interned("numel");
    return unsigned_of(called(tensor, name));
}

// DLPack's table, version 1: https://dmlc.github.io/dlpack/latest/c_api.html
struct ExchangeHeader {
    std::uint32_t major, minor;
    const ExchangeHeader* older;
};
struct Exchange {
    ExchangeHeader header;
    const void *allocate, *to_managed, *from_managed;
    int (*describe)(void* tensor, nb::dlpack::dltensor* out);  // may be absent
    int (*current_stream)(std::int32_t device_type, std::int32_t device, void** out);
};
constexpr std::uint32_t kExchangeMajor = 1;
constexpr const char* kExchangeAttribute = "__dlpack_c_exchange_api__";
constexpr const char* kExchangeCapsule = "dlpack_exchange_api";

const Exchange* exchange_in(nb::handle type) {
    const nb::object own = type.attr("__dict__");  // a derived class may answer otherwise
    const nb::object capsule = own.attr("get")(kExchangeAttribute);
    if (PyCapsule_IsValid(capsule.ptr(), kExchangeCapsule) == 0) {
        return nullptr;
    }
    const auto* header = static_cast<const ExchangeHeader*>(PyCapsule_GetPointer(capsule.ptr(), kExchangeCapsule));
    while (header != nullptr && header->major != kExchangeMajor) {
        header = header->older;
    }
    const auto* const found = reinterpret_cast<const Exchange*>(header);
    return found != nullptr && found->describe != nullptr && found->current_stream != nullptr ? found : nullptr;
}

// Of the tensor's class. The first few classes that have one are kept for good: a program has torch's, and no more.
const Exchange* exchange_of(nb::handle tensor) {
    struct Known {
        PyObject* type = nullptr;
        const Exchange* exchange = nullptr;
    };
    static std::array<Known, 4> known;
    static nb::ft_mutex mutex;  // where there is no GIL
    const nb::handle type = tensor.type();
    {
        const nb::ft_lock_guard guard(mutex);
        for (const Known& each : known) {
            if (each.type == type.ptr()) {
                return each.exchange;
            }
        }
    }
    const Exchange* const found = exchange_in(type);
    if (found != nullptr) {
        const nb::ft_lock_guard guard(mutex);
        for (Known& each : known) {
            if (each.type == nullptr) {
                each = {type.inc_ref().ptr(), found};
                break;
            }
        }
    }
    return found;
}

nb::dlpack::dltensor described(const Exchange& exchange, nb::handle tensor) {
    nb::dlpack::dltensor told;
    if (exchange.describe(tensor.ptr(), &told) != 0) {
        throw nb::python_error();
    }
    return told;
}

std::uintptr_t address_of(const nb::dlpack::dltensor& told) {
    return reinterpret_cast<std::uintptr_t>(told.data) + told.byte_offset;
}

bool is_on_host(const nb::dlpack::dltensor& told) {
    return told.device.device_type == nb::device::cpu::value || told.device.device_type == nb::device::cuda_host::value;
}

std::span<const std::uint32_t> numbers_at(std::uintptr_t address, std::size_t count) {
    return {reinterpret_cast<const std::uint32_t*>(address), count};  // a negative number is out of every table
}

std::optional<std::span<const std::uint32_t>> told_numbers(const nb::dlpack::dltensor& told) {
    const bool is_vector = told.ndim == 1 && (told.shape[0] < 2 || told.strides == nullptr || told.strides[0] == 1);
    if (!is_vector || !is_on_host(told) || told.dtype != nb::dtype<std::int32_t>()) {
        return std::nullopt;
    }
    return numbers_at(address_of(told), static_cast<std::size_t>(told.shape[0]));
}

// Nothing if there are more dimensions than a layout has.
std::optional<TensorLayout> layout_of(const nb::dlpack::dltensor& told) {
    if (std::cmp_greater(told.ndim, kDimensionsMax)) {
        return std::nullopt;
    }
    TensorLayout layout{.dimensions = static_cast<std::size_t>(told.ndim)};
    std::int64_t contiguous = 1;
    for (std::size_t i = layout.dimensions; i-- > 0;) {
        layout.sizes[i] = told.shape[i];
        layout.strides[i] = told.strides != nullptr ? told.strides[i] : contiguous;
        contiguous *= told.shape[i];
    }
    return layout;
}

std::optional<TensorLayout> layout_by_methods(nb::handle tensor) {
    static const nb::handle shape = interned("shape");
    static const nb::handle stride = interned("stride");
    const nb::object sizes = nb::getattr(tensor, shape);
    const nb::object strides = called(tensor, stride);
    TensorLayout layout{.dimensions = nb::len(sizes)};
    if (layout.dimensions > kDimensionsMax) {
        return std::nullopt;
    }
    for (std::size_t i = 0; i < layout.dimensions; ++i) {
        layout.sizes[i] = nb::cast<std::int64_t>(sizes[i]);
        layout.strides[i] = nb::cast<std::int64_t>(strides[i]);
    }
    return layout;
}

}  // namespace

nb::handle interned(const char* name) {
    PyObject* made = PyUnicode_InternFromString(name);
    if (made == nullptr) {
        throw nb::python_error();
    }
    return made;
}

std::uintptr_t data_ptr(nb::handle tensor) {
    static const nb::handle name = interned("data_ptr");
    const Exchange* const exchange = exchange_of(tensor);
    return exchange != nullptr ? address_of(described(*exchange, tensor)) : unsigned_of(called(tensor, name));
}

bool TensorLayout::operator==(const TensorLayout& other) const {
    bool equal = dimensions == other.dimensions;
    for (std::size_t i = 0; equal && i < dimensions; ++i) {
        equal = sizes[i] == other.sizes[i] && (sizes[i] < 2 || strides[i] == other.strides[i]);
    }
    return equal;
}

bool is_view(nb::handle tensor, std::uintptr_t address, const TensorLayout& layout) {
    if (const Exchange* const exchange = exchange_of(tensor)) {
        const nb::dlpack::dltensor told = described(*exchange, tensor);
        return address_of(told) == address && is_on_host(told) && told.dtype == nb::dtype<std::int32_t>() &&
               layout_of(told) == layout;
    }
    return data_ptr(tensor) == address && layout_by_methods(tensor) == layout && dtype_of(tensor) == "int32";
}

std::optional<std::span<const std::uint32_t>> host_numbers(nb::handle tensor) {
    if (const Exchange* const exchange = exchange_of(tensor)) {
        return told_numbers(described(*exchange, tensor));
    }
    static const nb::handle is_cuda = interned("is_cuda");
    static const nb::handle is_contiguous = interned("is_contiguous");
    if (!nb::hasattr(tensor, is_cuda) || !nb::hasattr(tensor, is_contiguous) ||
        nb::cast<bool>(nb::getattr(tensor, is_cuda)) || dtype_of(tensor) != "int32") {
        return std::nullopt;
    }
    const auto count = static_cast<std::size_t>(nb::len(tensor));
    if (numel(tensor) != count || !nb::cast<bool>(called(tensor, is_contiguous))) {
        return std::nullopt;
    }
    return numbers_at(data_ptr(tensor), count);
}

std::optional<std::uintptr_t> current_stream(nb::handle tensor) {
    const Exchange* const exchange = exchange_of(tensor);
    if (exchange == nullptr) {
        return std::nullopt;
    }
    const nb::dlpack::device device = described(*exchange, tensor).device;
    if (device.device_type != nb::device::cuda::value) {
        return std::nullopt;
    }
    void* stream = nullptr;
    if (exchange->current_stream(device.device_type, device.device_id, &stream) != 0) {
        throw nb::python_error();
    }
    return reinterpret_cast<std::uintptr_t>(stream);
}

std::string dtype_of(nb::handle tensor) {
    const nb::object dtype = tensor.attr("dtype");
    const std::string name = nb::str(nb::handle(dtype)).c_str();
    const std::string prefix = "torch.";
    return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

}  // namespace kvfix::bindings
