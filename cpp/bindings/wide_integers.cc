#include "bindings/wide_integers.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

// Passes Python's errors on to the caller, a MemoryError among them.
nb::object made(PyObject* number) {
    if (number == nullptr) {
        throw nb::python_error();
    }
    return nb::steal(number);
}

}  // namespace

PyObject* python_int(std::uint64_t low, std::uint64_t high) {
    const nb::object bits = made(PyLong_FromLong(64));
    const nb::object upper = made(PyNumber_Lshift(made(PyLong_FromUnsignedLongLong(high)).ptr(), bits.ptr()));
    return made(PyNumber_Or(upper.ptr(), made(PyLong_FromUnsignedLongLong(low)).ptr())).release().ptr();
}

std::optional<Hash128> words_of(nb::handle number) {
    if (!PyLong_Check(number.ptr()) || PyBool_Check(number.ptr())) {
        return std::nullopt;
    }
    const nb::object upper = made(PyNumber_Rshift(number.ptr(), made(PyLong_FromLong(64)).ptr()));
    const unsigned long long high = PyLong_AsUnsignedLongLong(upper.ptr());
    if (PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        return std::nullopt;
    }
    return Hash128{PyLong_AsUnsignedLongLongMask(number.ptr()), high};
}

}  // namespace kvfix::bindings
