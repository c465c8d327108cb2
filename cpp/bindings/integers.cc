#include "bindings/integers.h"

#include <nanobind/ndarray.h>

#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "bindings/integer_array.h"
#include "bindings/numpy_types.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

[[noreturn]] void wrong_type(const Field& field, const std::string& got) {
    throw nb::type_error(
        (field.text() + ": expected a 1-D array of int32 or int64, or a list of ints, got " + got).c_str());
}

std::string name_of_type(nb::handle object) { return nb::type_name(object.type()).c_str(); }

[[noreturn]] void not_exported(nb::handle object, const nb::python_error& error, const Field& field) {
    wrong_type(field, "'" + name_of_type(object) + "', which does not export itself: " + shown(error.value()));
}

// ------------------------------------------------------------------------------------------------ lists and tuples

// Returns nothing if the int does not fit.
template <class T>
std::optional<T> value_of(PyObject* item) {
    if constexpr (std::is_same_v<T, std::uint64_t>) {
        const unsigned long long value = PyLong_AsUnsignedLongLong(item);
        if (value != std::numeric_limits<unsigned long long>::max() || PyErr_Occurred() == nullptr) [[likely]] {
            return static_cast<T>(value);
        }
    } else {
        const long long value = PyLong_AsLongLong(item);
        if (value >= std::numeric_limits<T>::min() && value <= std::numeric_limits<T>::max() &&
            (value != -1 || PyErr_Occurred() == nullptr)) {
            return static_cast<T>(value);
        }
    }
    PyErr_Clear();
    return std::nullopt;
}

template <class T>
T from_python_int(PyObject* item, const Field& field, std::size_t position) {
    if (const std::optional<T> value = value_of<T>(item)) [[likely]] {
        return *value;
    }
    out_of_range<T>(field, position, shown(item));
}

// Reads the value of an exact int of one digit, as all token ids are, without a call. Returns -1 for others, and always
// in builds for the stable ABI, which cannot look inside an int.
std::int64_t small_value(PyObject* item) {
#if defined(Py_LIMITED_API)
    static_cast<void>(item);
    return -1;
#elif PY_VERSION_HEX >= 0x030C0000
    auto* number = reinterpret_cast<PyLongObject*>(item);
    return PyUnstable_Long_IsCompact(number) != 0 ? PyUnstable_Long_CompactValue(number) : -1;
#else
    const Py_ssize_t digits = Py_SIZE(item);
    if (digits == 1) {
        return static_cast<std::int64_t>(reinterpret_cast<PyLongObject*>(item)->ob_digit[0]);
    }
    return digits == 0 ? 0 : -1;
#endif
}

// The int that the object stands for, as a numpy scalar does; nothing if it stands for none, as a bool does here. This
// runs the object's own code.
nb::object index_of(nb::handle object) {
    if (PyBool_Check(object.ptr()) || !PyIndex_Check(object.ptr())) {
        return {};
    }
    nb::object number = nb::steal(PyNumber_Index(object.ptr()));
    if (!number.is_valid()) {
        throw nb::python_error();
    }
    return number;
}

// Reads anything else that claims to be an integer. The caller must look at its list again.
template <class T>
T from_index(const nb::object& item, const Field& field, std::size_t position) {
    const nb::object number = index_of(item);
    if (!number.is_valid()) {
        wrong_type(field, "'" + name_of_type(item) + "' at position " + std::to_string(position));
    }
    return from_python_int<T>(number.ptr(), field, position);
}

#if !defined(Py_LIMITED_API) && !defined(Py_GIL_DISABLED)
// Reads items from `at` on as long as small_value() can, and returns where it ends. Such ints run no code, so the list
// cannot change under them and needs no reference held.
template <class T>
Py_ssize_t read_small(PyObject* const* items, Py_ssize_t at, Py_ssize_t count, T* out) {
    for (; at < count && PyLong_CheckExact(items[at]); ++at) {
        const std::int64_t value = small_value(items[at]);
        if (value < 0) {
            break;
        }
        out[at] = static_cast<T>(value);
    }
    return at;
}
#endif

nb::object item_of(PyObject* sequence, bool is_list, Py_ssize_t at) {
#if PY_VERSION_HEX >= 0x030D0000 && !defined(Py_LIMITED_API)
    PyObject* item = is_list ? PyList_GetItemRef(sequence, at) : Py_XNewRef(PyTuple_GetItem(sequence, at));
#else
    PyObject* item = is_list ? PyList_GetItem(sequence, at) : PyTuple_GetItem(sequence, at);
    Py_XINCREF(item);
#endif
    if (item == nullptr) {
        PyErr_Clear();
    }
    return nb::steal(item);
}

Py_ssize_t length_of(PyObject* sequence, bool is_list) {
    return is_list ? PyList_Size(sequence) : PyTuple_Size(sequence);
}

template <class T>
std::vector<T> read_sequence(PyObject* sequence, const Field& field) {
    const bool is_list = PyList_Check(sequence);
    const Py_ssize_t count = length_of(sequence, is_list);
    std::vector<T> out(static_cast<std::size_t>(count));
    for (Py_ssize_t at = 0; at < count; ++at) {
#if !defined(Py_LIMITED_API) && !defined(Py_GIL_DISABLED)
        at = read_small(PySequence_Fast_ITEMS(sequence), at, count, out.data());
        if (at == count) {
            break;
        }
#endif
        const auto position = static_cast<std::size_t>(at);
        nb::object item = item_of(sequence, is_list, at);
        if (item.is_valid() && PyLong_CheckExact(item.ptr())) {
            out[position] = from_python_int<T>(item.ptr(), field, position);
            continue;
        }
        if (item.is_valid()) {
            out[position] = from_index<T>(item, field, position);
        }
        if (length_of(sequence, is_list) != count) {
            bad_value(field, "the list changed while it was read, from " + std::to_string(count) + " to " +
                                 std::to_string(length_of(sequence, is_list)) + " items");
        }
    }
    return out;
}

// ------------------------------------------------------------------------------------------------ arrays

class BufferView {
  public:
    BufferView(nb::handle object, int flags, const Field& field) {
        if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
            if (PyErr_ExceptionMatches(PyExc_BufferError) == 0 && PyErr_ExceptionMatches(PyExc_ValueError) == 0) {
                throw nb::python_error();
            }
            not_exported(object, nb::python_error(), field);
        }
    }
    BufferView(const BufferView&) = delete;
    BufferView& operator=(const BufferView&) = delete;
    ~BufferView() { PyBuffer_Release(&view_); }
    const Py_buffer* operator->() const { return &view_; }

  private:
    Py_buffer view_{};
};

ItemType type_in_format(const BufferView& view, const Field& field) {
    const std::string format = view->format != nullptr ? view->format : "B";
    // Only native byte order: one letter, perhaps after '@' or '='.
    const bool plain =
        format.size() == 1 || (format.size() == 2 && (format[0] == '@' || format[0] == '=' || format[0] == '<'));
    const char letter = plain ? format.back() : 'B';
    const bool is_signed = std::strchr("ilq", letter) != nullptr;
    const bool is_unsigned = std::strchr("ILQ", letter) != nullptr;
    if (!plain || (!is_signed && !is_unsigned) || (view->itemsize != 4 && view->itemsize != 8)) {
        wrong_type(field, "items of format '" + format + "'");
    }
    return {static_cast<std::size_t>(view->itemsize), is_signed};
}

IntegerArray array_of(const BufferView& view, ItemType type) {
    // An exporter may leave both out even if they were asked for: ctypes gives no strides for an array without gaps.
    const Py_ssize_t count = view->shape != nullptr ? view->shape[0] : view->len / view->itemsize;
    const std::ptrdiff_t step = view->strides != nullptr ? view->strides[0] : view->itemsize;
    return {static_cast<const char*>(view->buf), static_cast<std::size_t>(count), step, type.bytes, type.is_signed};
}

template <class T>
std::vector<T> read_buffer(nb::handle object, const Field& field) {
    const std::optional<ItemType> known = numpy_types().type_of(object);
    // numpy writes a format anew for each reader that asks for one, which takes longer than to read a few numbers.
    const BufferView view(object, known ? PyBUF_STRIDES : PyBUF_STRIDES | PyBUF_FORMAT, field);
    if (view->ndim != 1) {
        wrong_type(field, std::to_string(view->ndim) + "-D data");
    }
    const bool is_known = known && std::cmp_equal(known->bytes, view->itemsize);
    const ItemType type = is_known ? *known : type_in_format(view, field);
    if (!is_known) {
        numpy_types().learn(object, type);
    }
    return read_array<T>(array_of(view, type), field);
}

// ------------------------------------------------------------------------------------------------ tensors

// Returns the attribute, or nothing if there is none. Any other error of the look-up goes to the caller.
nb::object find_attribute(nb::handle object, const char* name) {
    PyObject* found = PyObject_GetAttrString(object.ptr(), name);
    if (found == nullptr) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) {
            throw nb::python_error();
        }
        PyErr_Clear();
    }
    return nb::steal(found);
}

bool is_true(const nb::object& value) {
    const int truth = PyObject_IsTrue(value.ptr());
    if (truth < 0) {
        throw nb::python_error();
    }
    return truth != 0;
}

// Asks without a version first, because not every exporter knows versions. A read-only exporter may need one, though.
nb::object dlpack_capsule(const nb::object& exporter) {
    try {
        return exporter();
    } catch (const nb::python_error& error) {
        if (!error.matches(PyExc_BufferError) && !error.matches(PyExc_TypeError)) {
            throw;
        }
    }
    using namespace nb::literals;
    return exporter("max_version"_a = nb::make_tuple(1, 0));
}

// Called here and not by nanobind, which would drop the exporter's errors, even a KeyboardInterrupt.
nb::object export_tensor(nb::handle object, const nb::object& exporter, const Field& field) {
    if (const nb::object is_neg = find_attribute(object, "is_neg"); is_neg.is_valid() && is_true(is_neg())) {
        wrong_type(field,
                   "a negative view, whose memory holds the values with the other sign; call resolve_neg() first");
    }
    try {
        return dlpack_capsule(exporter);
    } catch (const nb::python_error& error) {
        if (!error.matches(PyExc_BufferError) && !error.matches(PyExc_TypeError)) {
            throw;
        }
        not_exported(object, error, field);
    }
}

template <class T>
std::vector<T> read_tensor(nb::handle object, const nb::object& exporter, const Field& field) {
    nb::ndarray<nb::ro, nb::device::cpu> tensor;
    if (!nb::try_cast(export_tensor(object, exporter, field), tensor)) {
        wrong_type(field, "'" + name_of_type(object) + "' (a tensor must be on the CPU)");
    }
    const nb::dlpack::dtype type = tensor.dtype();
    const auto code = static_cast<nb::dlpack::dtype_code>(type.code);
    const bool is_signed = code == nb::dlpack::dtype_code::Int;
    if (tensor.ndim() != 1) {
        wrong_type(field, std::to_string(tensor.ndim()) + "-D data");
    }
    if ((!is_signed && code != nb::dlpack::dtype_code::UInt) || type.lanes != 1 ||
        (type.bits != 32 && type.bits != 64)) {
        wrong_type(field, "a tensor of another dtype");
    }
    const std::size_t item_bytes = type.bits / 8;
    return read_array<T>({static_cast<const char*>(tensor.data()), tensor.shape(0),
                          tensor.stride(0) * static_cast<std::ptrdiff_t>(item_bytes), item_bytes, is_signed},
                         field);
}

}  // namespace

std::string shown(nb::handle object) {
    const nb::object text = nb::steal(PyObject_Repr(object.ptr()));
    Py_ssize_t size = 0;
    const char* utf8 = text.is_valid() ? PyUnicode_AsUTF8AndSize(text.ptr(), &size) : nullptr;
    if (utf8 != nullptr) {
        return {utf8, static_cast<std::size_t>(size)};
    }
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) {
        throw nb::python_error();  // Ctrl-C says nothing about the object
    }
    PyErr_Clear();
    return PyLong_Check(object.ptr()) ? "(an int of thousands of digits)" : "'" + name_of_type(object) + "'";
}

template <class T>
T read_integer(nb::handle object, const Field& field) {
    const nb::object number = index_of(object);
    if (!number.is_valid()) {
        throw nb::type_error((field.text() + ": expected an int, got " + shown(object)).c_str());
    }
    if (const std::optional<T> value = value_of<T>(number.ptr())) [[likely]] {
        return *value;
    }
    throw std::invalid_argument(field.text() + " is " + shown(number) + ": " +
                                std::to_string(std::numeric_limits<T>::min()) + " to " +
                                std::to_string(std::numeric_limits<T>::max()));
}

template std::uint8_t read_integer(nb::handle, const Field&);
template std::uint32_t read_integer(nb::handle, const Field&);
template std::int32_t read_integer(nb::handle, const Field&);
template std::uint64_t read_integer(nb::handle, const Field&);
template std::int64_t read_integer(nb::handle, const Field&);

template <class T>
std::vector<T> read_integers(nb::handle object, const Field& field) {
    if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
        return read_sequence<T>(object.ptr(), field);
    }
    if (PyObject_CheckBuffer(object.ptr()) != 0 && !PyBytes_Check(object.ptr())) {
        return read_buffer<T>(object, field);
    }
    if (const nb::object exporter = find_attribute(object, "__dlpack__"); exporter.is_valid()) {
        return read_tensor<T>(object, exporter, field);
    }
    wrong_type(field, "'" + name_of_type(object) + "'");
}

template std::vector<std::int64_t> read_integers(nb::handle, const Field&);
template std::vector<std::int32_t> read_integers(nb::handle, const Field&);
template std::vector<std::uint8_t> read_integers(nb::handle, const Field&);
template std::vector<std::uint32_t> read_integers(nb::handle, const Field&);
template std::vector<std::uint64_t> read_integers(nb::handle, const Field&);

}  // namespace kvfix::bindings
