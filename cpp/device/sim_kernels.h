// Kernels on the simulated device: the references, behind the address check that a GPU's memory unit would make.
#pragma once

#include "device/device.h"
#include "device/sim_memory.h"

namespace kvfix {

// Runs in the stream's thread. Throws DeviceError, before anything is written, when an address is not the device's.
void run_kernel(const KernelCall& call, const SimMemory::Access& access);

}  // namespace kvfix
