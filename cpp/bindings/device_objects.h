// Objects that the device bindings and the staging bindings share.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "bindings/ungilled.h"
#include "device/device.h"
#include "staging/pinned_memory.h"

namespace kvfix::bindings {

struct PinnedArray {
    std::shared_ptr<Ungilled<PinnedMemory>> memory;
    std::vector<std::size_t> shape;
    std::string dtype;
};

struct DeviceArray {
    std::shared_ptr<Ungilled<DeviceMemory>> memory;
    std::vector<std::size_t> shape;
    std::string dtype;
};

std::vector<CopySpan> read_spans(nanobind::handle dst, nanobind::handle src, nanobind::handle nbytes);
SourceOrder source_order(const std::string& name);

void bind_digest_ring(nanobind::module_& module, nanobind::class_<Device>& device);

}  // namespace kvfix::bindings
