// Refuses arguments with which no kernel may be started, on any device; every launch() calls it first. It does not
// judge addresses, because a launch cannot see them either.
#pragma once

#include "device/device.h"

namespace kvfix {

void check_call(
    const KernelCall& call);  // throws DeviceError that names the kernel, the field, the value and the limit
const char* kernel_name(const KernelCall& call);

}  // namespace kvfix
