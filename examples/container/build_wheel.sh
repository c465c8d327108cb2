#!/bin/bash
# Build the wheel of this package for the interpreter that is `python3` here.
#   build_wheel.sh SOURCE FOLDER [AUTO|ON|OFF]
# The third argument says whether CUDA kernels are embedded (AUTO: if nvcc is found). The build needs a C++20 compiler and Python's headers.
set -euo pipefail
source=${1:?the folder of the source is missing}
folder=${2:?the folder for the wheel is missing}
kernels=${3:-AUTO}
case $kernels in
  AUTO | ON | OFF) ;;
  *) echo "kernels are '$kernels': AUTO, ON or OFF is expected" >&2; exit 2 ;;
esac
python3 -m pip wheel --no-deps --disable-pip-version-check \
  --config-settings=cmake.define.KVFIX_KERNELS="$kernels" --wheel-dir "$folder" "$source"
