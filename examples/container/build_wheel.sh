#!/bin/bash
# Build the wheel of this package for the interpreter that is `python3` here.
#   build_wheel.sh SOURCE FOLDER [AUTO|ON|OFF]
# The third argument says whether CUDA kernels are embedded (AUTO: if nvcc is found). The build needs a C++20 compiler and Python's headers.
set -euo pipefail
source=$(realpath -e -- "${1:?the folder of the source is missing}")  # pip takes a bare name for a package of the index
folder=${2:?the folder for the wheel is missing}
kernels=${3:-AUTO}
case $kernels in
  AUTO | ON | OFF) ;;
  *) echo "kernels are '$kernels': AUTO, ON or OFF is expected" >&2; exit 2 ;;
esac
# A variable and not --config-settings, which pip before 22.1 does not know.
SKBUILD_CMAKE_DEFINE="KVFIX_KERNELS=$kernels" \
  python3 -m pip wheel --no-deps --disable-pip-version-check --wheel-dir "$folder" "$source"
