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

std::vector<Hash128> read_hashes(nb::handle hashes, const Field& field) {
    if (!PyList_Check(hashes.ptr()) && !PyTuple_Check(hashes.ptr())) {
        throw nb::type_error(
            (field.text() + ": expected a list of ints of 128 bits, got " + nb::type_name(hashes.type()).c_str())
                .c_str());
    }
    std::vector<Hash128> out;
    for (const nb::handle item : nb::steal<nb::tuple>(PySequence_Tuple(hashes.ptr()))) {
        if (!PyLong_Check(item.ptr()) || PyBool_Check(item.ptr())) {
            throw nb::type_error((field.text() + ": expected ints of 128 bits, got " + shown(item) + " at position " +
                                  std::to_string(out.size()))
                                     .c_str());
        }
        const auto words = words_of(item);
        if (!words) {
            throw nb::value_error((field.text() + ": " + shown(item) + " at position " + std::to_string(out.size()) +
                                   " is no hash: an int, 0 to 2**128 - 1")
                                      .c_str());
        }
        out.push_back(*words);
    }
    return out;
}

}  // namespace kvfix::bindings
