#!/bin/sh
# Runs the checks of the device, the tests and `verify` on a GPU, without the benchmarks of run.sh, in about eight
# minutes with the build:
#   integration/gpu/tests.sh RESULTS_DIR ['pytest arguments' ...]
# Needs what run.sh needs. If the tree has no history, KVFIX_COMMIT=<hash> names its commit. The tests run side by side,
# because one after the other they take longer than that; those of hostrace come after them, alone.
set -eu
cd "$(dirname "$0")/../.."
results=${1:?usage: tests.sh RESULTS_DIR ['pytest arguments' ...]}
shift
long='overlay offload_traffic native_manager lent_tables engine offload'
if [ $# -eq 0 ]; then
  rest=integration/gpu
  for name in $long; do
    set -- "$@" "integration/gpu/test_$name.py"
    rest="$rest --ignore=integration/gpu/test_$name.py"
  done
  set -- "$@" "$rest"
fi
. integration/gpu/install.sh
into_site ./watch
status=0
sh integration/gpu/device/run.sh >"$results/device.txt" 2>&1 || { status=1; tail -n 40 "$results/device.txt"; }
# The checkout must not shadow what was installed.
cp -r integration bench tests watch "$site"/
cd "$site"
python3 -c 'from trtllm_kvfix import native; print(native.build_info(), native.open_device("cuda").name)'
python3 -m trtllm_kvfix verify --device cuda --html "$results/verify.html" --json >"$results/verify.json" || status=1
python3 bench/record_verify.py --results "$results" <"$results/verify.json" || status=1
side_by_side "$@" || status=1
python3 -m pytest -q -p no:cacheprovider watch/gpu || status=1
exit $status
