#!/bin/sh
# Builds and runs the checks of the CUDA device, again under compute-sanitizer if that is installed, and the
# measurements. Needs an NVIDIA GPU with its driver, nvcc 12 or newer, CMake and Ninja.
set -eu
cd "$(dirname "$0")/../../.."
build=${BUILD:-build/gpu}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
nvcc --version | tail -n 2
cmake -S integration/gpu/device -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DKVFIX_KERNELS=ON --log-level=WARNING
cmake --build "$build" --target check_cuda_device measure_cuda_device

failed=0
# One process for each group, so that a group that hangs does not hide the others, and first launches come first.
for group in first-launches copies gates graphs kernels runtime threads errors; do
    timeout 40 "$build/bin/check_cuda_device" $group || { echo "BROKEN: $group, exit code $?"; failed=1; }
done
if command -v compute-sanitizer >/dev/null; then
    # Leaves out the groups whose calls the driver should refuse or hold: the tool would count or prolong them.
    timeout 90 compute-sanitizer --tool memcheck --error-exitcode 1 \
        "$build/bin/check_cuda_device" first-launches copies graphs kernels runtime threads || failed=1
else
    echo "compute-sanitizer is not installed: memory accesses were not checked"
fi
timeout 60 "$build/bin/measure_cuda_device" || failed=1
exit $failed
