#!/bin/bash
# Build manylinux wheels of both packages into dist/ with cibuildwheel, which needs docker or podman. docs/packages.md says more.
#   tools/wheels.sh [--kernels PACKAGE] [ARCH...]
# PACKAGE is NVIDIA's RPM of the compiler, such as cuda-nvcc-12-8; without it the wheels have no kernels. ARCH is x86_64 or
# aarch64, by default the machine's own; another one needs QEMU's binfmt handlers, and hours.
set -euo pipefail
cd "$(dirname "$0")/.."

export SKBUILD_CMAKE_DEFINE=KVFIX_KERNELS=OFF
if [ "${1:-}" = --kernels ]; then
  export KVFIX_NVCC_PACKAGE=${2:?--kernels wants the name of a package, such as cuda-nvcc-12-8}
  # A build that finds no compiler after all is an error, not a wheel without kernels.
  export SKBUILD_CMAKE_DEFINE=KVFIX_KERNELS=ON
  shift 2
fi
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
fi
export SOURCE_DATE_EPOCH
archs=$(IFS=,; echo "${*:-native}")
cibuildwheel --platform linux --archs "$archs" --output-dir dist .
# An sdist has no hostrace. It is for x86-64 alone: where that is not among ARCH, there is nothing to build.
if [ -d watch ]; then
  cibuildwheel --platform linux --archs "$archs" --allow-empty --output-dir dist watch
fi
