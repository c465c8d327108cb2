// Arguments that no kernel may be started with, on any device: every launch() checks them first. Addresses are not judged here,
// as a launch cannot see them either.
#pragma once

#include "device/device.h"

namespace kvfix {

void check_call(
    const KernelCall& call);  // throws DeviceError that names the kernel, the field, the value and the limit
const char* kernel_name(const KernelCall& call);

}  // namespace kvfix
