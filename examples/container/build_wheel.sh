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
export SKBUILD_CMAKE_DEFINE="KVFIX_KERNELS=$kernels"
if python3 -m pip --version >/dev/null 2>&1; then
  python3 -m pip wheel --no-deps --disable-pip-version-check --wheel-dir "$folder" "$source"
else  # Dynamo's image has uv and no pip.
  uv build --wheel --python "$(command -v python3)" --out-dir "$folder" "$source"
fi
