#!/bin/sh
# Runs what RAPIDS mended in the summer of 2026 on this machine's GPU, before and after, in less than a minute:
#   watch/gpu/rapids.sh WHEELS_DIR RESULTS_DIR
# WHEELS_DIR holds wheels of librmm for CUDA 13, one of each version, and of rapids-logger. Needs what cost.sh needs,
# and the toolkit's headers. Writes watch_rapids.csv in RESULTS_DIR; the exit code is 1 where a row is not as it has to
# be.
set -eu
cd "$(dirname "$0")/../.."
usage='usage: rapids.sh WHEELS_DIR RESULTS_DIR'
wheels=$(realpath "${1:?$usage}")
results=$(realpath "${2:?$usage}")
. watch/gpu/library.sh
toolkit=$(dirname "$(dirname "$(realpath "$(command -v nvcc)")")")
build=$(mktemp -d)
for wheel in "$wheels"/librmm*.whl; do
  version=$(basename "$wheel" | cut -d - -f 2)
  version=${version%.0}
  here=$build/$version
  mkdir "$here"
  python3 -m zipfile -e "$wheel" "$here"
  python3 -m zipfile -e "$(ls "$wheels"/rapids_logger*.whl)" "$here"
  c++ -std=c++20 -O1 -g -o "$here/rapids" watch/gpu/rapids.cc -I "$here/librmm/include" \
    -I "$here/librmm/include/rapids" -I "$here/rapids_logger/include" -I "$toolkit/include" \
    -L "$here/librmm/lib64" -L "$here/rapids_logger/lib64" -L "$toolkit/lib64" -lrmm -lrapids_logger -lcudart \
    -Wl,-rpath,"$here/librmm/lib64:$here/rapids_logger/lib64:$toolkit/lib64"
done
exec timeout 120 python3 -m watch.gpu.rapids "$build" "$results/watch_rapids.csv"
