#!/bin/sh
# Runs the tests and `verify` on a GPU, without the benchmarks of run.sh. For changes of the overlay, the device or
# staging:
#   integration/gpu/tests.sh RESULTS_DIR [pytest arguments]
# Needs what run.sh needs. If the tree has no history, KVFIX_COMMIT=<hash> names its commit.
set -eu
cd "$(dirname "$0")/../.."
results=${1:?usage: tests.sh RESULTS_DIR [pytest arguments]}
shift
[ $# -gt 0 ] || set -- integration/gpu watch/gpu
. integration/gpu/install.sh
into_site ./watch
status=0
sh integration/gpu/device/run.sh || status=1
# The checkout must not shadow what was installed.
cp -r integration bench tests watch "$site"/
cd "$site"
python3 -c 'from trtllm_kvfix import native; print(native.build_info(), native.open_device("cuda").name)'
python3 -m pytest -q -p no:cacheprovider "$@" || status=1
python3 -m trtllm_kvfix verify --device cuda --html "$results/verify.html" --json >"$results/verify.json" || status=1
python3 bench/record_verify.py --results "$results" <"$results/verify.json" || status=1
exit $status
