#!/bin/sh
# Runs the embedded engine on a GPU: token-exact tests with each fix off and on, the canary beside it and what that
# costs, `demo` and `bench`. It takes about four minutes after the build:
#   integration/gpu/engine.sh RESULTS_DIR
# Needs what run.sh needs. Writes pages and reports to RESULTS_DIR.
set -eu
cd "$(dirname "$0")/../.."
results=$(realpath "${1:?usage: engine.sh RESULTS_DIR}")
KVFIX_WITHOUT_BOUND=1
. integration/gpu/install.sh
# The checkout must not shadow what was installed.
cp -r integration bench tests "$site"/
cd "$site"
python3 -c 'from trtllm_kvfix import native; print(native.build_info(), native.open_device("cuda").name)'
status=0
timeout 60 python3 -X faulthandler -m pytest -q -x --durations=8 -p no:cacheprovider integration/gpu/test_engine.py || status=1
timeout 90 python3 -X faulthandler -m pytest -q --durations=8 -p no:cacheprovider integration/gpu/test_canary.py || status=1
timeout 90 python3 -m trtllm_kvfix demo --canary --device cuda --html "$results/demo.html" || status=1
timeout 60 python3 -m trtllm_kvfix bench --device cuda --repeats 1 --requests 40 --json >"$results/bench.json" || status=1
cat "$results/bench.json"
timeout 60 python3 bench/bench_canary.py --device cuda --results "$results" || status=1
exit $status
