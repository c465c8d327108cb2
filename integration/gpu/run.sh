#!/bin/sh
# Runs everything that needs a GPU, on a machine with CUDA, torch, cmake, ninja, nanobind and scikit-build-core:
#   integration/gpu/run.sh RESULTS_DIR [--quick]
# Builds into a folder of its own. Then it runs the tests, `verify` (once more under compute-sanitizer) and the
# benchmarks of staging, offload and the overlay, and writes rows to RESULTS_DIR. If the tree has no history,
# KVFIX_COMMIT=<hash> names its commit.
set -eu
cd "$(dirname "$0")/../.."
results=${1:?usage: run.sh RESULTS_DIR [--quick]}
. integration/gpu/install.sh
into_site ./watch
# The checkout must not shadow what was installed.
cp -r integration bench tests watch "$site"/
cd "$site"
python3 -c 'from trtllm_kvfix import native; print(native.build_info(), native.open_device("cuda").name)'
status=0
python3 -m pytest -q -p no:cacheprovider integration/gpu watch/gpu || status=1
python3 -m trtllm_kvfix verify --device cuda --html "$results/verify.html" --json >"$results/verify.json" || status=1
python3 bench/record_verify.py --results "$results" <"$results/verify.json" || status=1
if command -v compute-sanitizer >/dev/null; then
  timeout 200 compute-sanitizer --tool memcheck --error-exitcode 1 --target-processes all \
    python3 -m trtllm_kvfix verify --device cuda --iterations 2 >"$results/memcheck.txt" 2>&1 || status=1
  tail -n 5 "$results/memcheck.txt"
else
  echo "compute-sanitizer is not installed: memory accesses were not checked"
fi
python3 bench/bench_staging.py --results "$results" ${2:-} || status=1
python3 bench/bench_offload.py --results "$results" --matmul ${2:-} || status=1
python3 bench/bench_overlay.py --results "$results" --device torch ${2:-} || status=1
exit $status
