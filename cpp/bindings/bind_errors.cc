#include <string>

#include "bindings/bindings.h"
#include "core/check.h"
#include "core/errors.h"
#include "device/device.h"

namespace nb = nanobind;

namespace kvfix::bindings {
namespace {

struct ErrorTypes {
    PyObject* out_of_blocks;
    PyObject* unknown_request;
    PyObject* block_in_flight;
    PyObject* invariant_violation;
    PyObject* device_error;
};

PyObject* add_error(nb::module_& m, const char* name, PyObject* base, const char* doc,
                    const nb::dict& attributes = nb::dict()) {
    const std::string qualified = std::string("trtllm_kvfix._core.") + name;
    PyObject* type = PyErr_NewExceptionWithDoc(qualified.c_str(), doc, base, attributes.ptr());
    if (type == nullptr) {
        throw nb::python_error();
    }
    m.attr(name) = nb::handle(type);
    return type;
}

// The types live as long as the process, because an error may be raised after the module's dict has been cleared.
ErrorTypes& error_types() {
    static ErrorTypes types{};
    return types;
}

void raise_out_of_blocks(const OutOfBlocks& error) {
    const nb::object value = nb::handle(error_types().out_of_blocks)(error.what());
    value.attr("blocks_needed") = error.blocks_needed;
    value.attr("blocks_free") = error.blocks_free;
    value.attr("window_size") = error.window_size ? nb::object(nb::int_(*error.window_size)) : nb::none();
    value.attr("tier") = tier_name(error.tier);
    PyErr_SetObject(error_types().out_of_blocks, value.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
    try {
        std::rethrow_exception(thrown);
    } catch (const OutOfBlocks& error) {
        raise_out_of_blocks(error);
    } catch (const UnknownRequest& error) {
        PyErr_SetString(error_types().unknown_request, error.what());
    } catch (const BlockInFlight& error) {
        PyErr_SetString(error_types().block_in_flight, error.what());
    } catch (const InvariantViolation& error) {
        PyErr_SetString(error_types().invariant_violation, error.what());
    } catch (const DeviceError& error) {
        PyErr_SetString(error_types().device_error, error.what());
    }
}

}  // namespace

void bind_errors(nb::module_& m) {
    ErrorTypes& types = error_types();
    types.out_of_blocks =
        add_error(m, "OutOfBlocks", PyExc_RuntimeError,
                  "A window has too few blocks for the call. The attributes say how many it needed and had.");
    nb::dict plain;
    plain["__str__"] = nb::handle(PyExc_Exception).attr("__str__");  // KeyError would quote the message
    types.unknown_request =
        add_error(m, "UnknownRequest", PyExc_KeyError, "No live sequence has this request id.", plain);
    types.block_in_flight = add_error(m, "BlockInFlight", PyExc_RuntimeError, "A transfer still writes the block.");
    types.invariant_violation =
        add_error(m, "InvariantViolation", PyExc_RuntimeError,
                  "The manager's books contradict each other. This is a bug; do not use this manager any more.");
    types.device_error =
        add_error(m, "DeviceError", PyExc_RuntimeError,
                  "A device call failed. The message names the call, its arguments and the driver's text.");
    nb::register_exception_translator(translate);
}

}  // namespace kvfix::bindings
