// Each kernel as plain loops on the CPU. The simulated device runs these, and the CUDA kernels are compared with them.
// They trust their arguments as a kernel does.
#pragma once

#include "kernels/calls.h"

namespace kvfix {

void run_reference(const ExpandRows& call);
void run_reference(const GatherHostRows& call);
void run_reference(const GatherDeviceRows& call);
void run_reference(const CopyBlocks& call);
void run_reference(const DigestBlocks& call);
void run_reference(const FillWords& call);

}  // namespace kvfix
