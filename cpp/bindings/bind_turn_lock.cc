#include <nanobind/stl/string.h>

#include <structmember.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <string>

#include "bindings/bindings.h"
#include "bindings/repr.h"
#include "core/turn_lock.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

std::string text_of(const char* name, const TurnLock::Stats& stats) {
    return Repr(name)
        .add("depth", stats.depth)
        .add("queued", stats.queued)
        .add("turns", stats.turns)
        .add("waits", stats.waits)
        .add("wait_us", stats.wait_us)
        .text();
}

// ---- a callable that has its turn, as a type of CPython's: the executor comes through here hundreds of times a step ----

struct InTurn {
    PyObject_HEAD vectorcallfunc enter;
    PyObject* attributes;  // the marks of what a fix has replaced
    PyObject* references;  // weak ones, to this
    PyObject* call;
    PyObject* stalled;
    PyObject* owner;  // of the lock
    TurnLock* lock;
    double stall_s;
};

// With the GIL; waits without it.
void await_turn(const InTurn& self) {
    const std::chrono::duration<double> limit(self.stall_s);
    while (!without_gil([&] { return self.lock->acquire_within(limit); })) {
        if (PyObject* said = PyObject_CallNoArgs(self.stalled)) {
            Py_DECREF(said);
        } else {
            PyErr_WriteUnraisable(self.stalled);  // the call is made all the same
        }
    }
}

PyObject* call_in_turn(PyObject* object, PyObject* const* arguments, std::size_t count, PyObject* names) {
    const auto& self = *reinterpret_cast<InTurn*>(object);
    if (!self.lock->try_acquire()) {
        await_turn(self);
    }
    PyObject* const result = PyObject_Vectorcall(self.call, arguments, count, names);
    self.lock->release();
    return result;
}

// The stable ABI does not have it. The call of a method, for which Python makes no such object, does not need it.
nb::handle method_type() {
    static const nb::handle type = nb::object(nb::module_::import_("types").attr("MethodType")).release();
    return type;
}

PyObject* bind_to(PyObject* self, PyObject* instance, PyObject* /*type*/) {
    if (instance == nullptr || instance == Py_None) {
        return Py_NewRef(self);
    }
    return PyObject_CallFunctionObjArgs(method_type().ptr(), self, instance, nullptr);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
    const auto& self = *reinterpret_cast<InTurn*>(object);
    for (PyObject* each :
         {reinterpret_cast<PyObject*>(Py_TYPE(object)), self.attributes, self.call, self.stalled, self.owner}) {
        Py_VISIT(each);
    }
    return 0;
}

int clear(PyObject* object) {
    auto& self = *reinterpret_cast<InTurn*>(object);
    Py_CLEAR(self.attributes);
    Py_CLEAR(self.call);
    Py_CLEAR(self.stalled);
    Py_CLEAR(self.owner);
    return 0;
}

void end(PyObject* object) {
    PyObject_GC_UnTrack(object);
    PyObject_ClearWeakRefs(object);
    clear(object);
    PyTypeObject* const type = Py_TYPE(object);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

PyTypeObject* in_turn_type() {
    static std::array members{
        PyMemberDef{"__vectorcalloffset__", T_PYSSIZET, offsetof(InTurn, enter), READONLY, nullptr},
        PyMemberDef{"__dictoffset__", T_PYSSIZET, offsetof(InTurn, attributes), READONLY, nullptr},
        PyMemberDef{"__weaklistoffset__", T_PYSSIZET, offsetof(InTurn, references), READONLY, nullptr}, PyMemberDef{}};
    static std::array attributes{
        PyGetSetDef{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr}, PyGetSetDef{}};
    static std::array slots{PyType_Slot{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                            PyType_Slot{Py_tp_descr_get, reinterpret_cast<void*>(bind_to)},
                            PyType_Slot{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                            PyType_Slot{Py_tp_clear, reinterpret_cast<void*>(clear)},
                            PyType_Slot{Py_tp_dealloc, reinterpret_cast<void*>(end)},
                            PyType_Slot{Py_tp_members, members.data()},
                            PyType_Slot{Py_tp_getset, attributes.data()},
                            PyType_Slot{0, nullptr}};
    static PyType_Spec spec{
        "trtllm_kvfix._core.InTurn", sizeof(InTurn), 0,
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
        slots.data()};
    static PyObject* const type = PyType_FromSpec(&spec);
    return reinterpret_cast<PyTypeObject*>(type);
}

nb::object guarded(nb::handle owner, nb::object call, nb::object stalled, double stall_s) {
    method_type();  // may throw here, and not where CPython calls
    PyTypeObject* const type = in_turn_type();
    PyObject* const made = type == nullptr ? nullptr : PyType_GenericAlloc(type, 0);
    if (made == nullptr) {
        throw nb::python_error();
    }
    auto& self = *reinterpret_cast<InTurn*>(made);
    self.enter = call_in_turn;
    self.call = call.release().ptr();
    self.stalled = stalled.release().ptr();
    self.owner = nb::borrow(owner).release().ptr();
    self.lock = &nb::cast<TurnLock&>(owner);
    self.stall_s = stall_s;
    return nb::steal(made);
}

}  // namespace

void bind_turn_lock(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<TurnLock::Stats>(m, "TurnLockStats", "Counts since the lock was made.")
        .def_ro("turns", &TurnLock::Stats::turns, "How often the lock went from free to held.")
        .def_ro("waits", &TurnLock::Stats::waits, "Calls that had to queue.")
        .def_ro("wait_us", &TurnLock::Stats::wait_us, "The total time that they waited.")
        .def_ro("queued", &TurnLock::Stats::queued, "Calls that are waiting now.")
        .def_ro("depth", &TurnLock::Stats::depth, "How often the holder holds the lock now. 0: nobody holds it.")
        .def_ro("holder", &TurnLock::Stats::holder, "The thread that holds it, as `threading.get_ident` has it, or 0.")
        .def("__repr__", [](const TurnLock::Stats& s) { return text_of("TurnLockStats", s); });
    nb::class_<TurnLock>(m, "TurnLock",
                         "A recursive lock that serves first come, first served. Callers wait without the GIL.")
        .def(nb::init<>())
        .def("guarded", &guarded, "call"_a, "stalled"_a, "stall_s"_a,
             nb::sig("def guarded(self, call: collections.abc.Callable[..., Any], stalled: "
                     "collections.abc.Callable[[], Any], stall_s: float) -> collections.abc.Callable[..., Any]"),
             "What makes this call while it holds the lock. As a class attribute it binds like any method. While it "
             "waits "
             "for the lock, it calls `stalled` every stall_s.")
        .def("stats", &TurnLock::stats, "Counts of turns and waits.")
        .def("__repr__", [](const TurnLock& lock) { return text_of("TurnLock", lock.stats()); });
}

}  // namespace kvfix::bindings
