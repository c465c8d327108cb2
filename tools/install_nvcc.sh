#!/bin/bash
# In a manylinux container, before wheels are built: install the CUDA compiler that KVFIX_NVCC_PACKAGE names, if any, with
# the headers that it includes by itself. tools/wheels.sh sets it.
set -euo pipefail
package=${KVFIX_NVCC_PACKAGE:-}
[ -n "$package" ] || exit 0
version=${package#cuda-nvcc-}
if [ "$version" = "$package" ]; then
  echo "KVFIX_NVCC_PACKAGE is '$package': a package of NVIDIA's such as cuda-nvcc-12-8 is expected" >&2
  exit 2
fi
case $(uname -m) in
  x86_64) repository=x86_64 ;;
  aarch64) repository=sbsa ;;
  *) echo "NVIDIA has no CUDA compiler for $(uname -m)" >&2; exit 2 ;;
esac
dnf config-manager --add-repo \
  "https://developer.download.nvidia.com/compute/cuda/repos/rhel8/$repository/cuda-rhel8.repo"
dnf install -y "$package" "cuda-cudart-devel-$version"
# CMake looks for nvcc in PATH and in CUDA_HOME (cmake/kernels.cmake).
ln -sf "/usr/local/cuda-${version/-/.}/bin/nvcc" /usr/local/bin/nvcc
