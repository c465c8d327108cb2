#include "bindings/numpy_types.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

// An object that Python cannot find is not there. Other errors are dropped as well: the caller then asks for a format.
nb::object found(PyObject* object) {
    if (object == nullptr) {
        PyErr_Clear();
    }
    return nb::steal(object);
}

nb::object dtype_of(nb::handle array) {
    static PyObject* const kName = PyUnicode_InternFromString("dtype");
    return found(PyObject_GetAttr(array.ptr(), kName));
}

void set_once(std::atomic<PyObject*>& place, nb::object object) {
    PyObject* none = nullptr;
    if (object.is_valid() && place.compare_exchange_strong(none, object.ptr())) {
        object.release();
    }
}

nb::object imported_array_type() {
    const nb::object numpy = found(PyImport_GetModule(nb::str("numpy").ptr()));
    return numpy.is_valid() ? found(PyObject_GetAttrString(numpy.ptr(), "ndarray")) : nb::object();
}

}  // namespace

// A derived class may say any dtype.
bool NumpyTypes::is_array(nb::handle object) const {
    return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) == array_type_.load(std::memory_order_acquire);
}

std::optional<ItemType> NumpyTypes::type_of(nb::handle object) const {
    if (!is_array(object)) {
        return std::nullopt;
    }
    const nb::object dtype = dtype_of(object);
    for (std::size_t i = 0; i < kTypes.size(); ++i) {
        if (dtype.is_valid() && dtypes_[i].load(std::memory_order_acquire) == dtype.ptr()) {
            return kTypes[i];
        }
    }
    return std::nullopt;
}

void NumpyTypes::learn(nb::handle object, ItemType type) {
    if (array_type_.load(std::memory_order_acquire) == nullptr) {
        set_once(array_type_, imported_array_type());
    }
    if (is_array(object)) {
        const std::size_t place = (type.bytes == 8 ? 2U : 0U) + (type.is_signed ? 1U : 0U);
        set_once(dtypes_[place], dtype_of(object));
    }
}

NumpyTypes& numpy_types() {
    static NumpyTypes instance;
    return instance;
}

}  // namespace kvfix::bindings
