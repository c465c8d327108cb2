#!/bin/sh
# Runs processes as users drive them when nothing goes by the book, on a GPU and with torch's tensors, in about five
# minutes after the build: forks while a server runs, children that drop everything, two engines in one process, fixes that
# come and go under load.
#   integration/gpu/processes.sh RESULTS_DIR
# Needs what run.sh needs. Writes what it saw to RESULTS_DIR/processes.txt.
set -eu
cd "$(dirname "$0")/../.."
results=$(realpath "${1:?usage: processes.sh RESULTS_DIR}")
. integration/gpu/install.sh
# The checkout must not shadow what was installed.
cp -r integration tests "$site"/
cd "$site"
export STANDIN_DEVICE=torch
status=0
# Without the fixes, too: what torch itself does in children shows there.
for setup in 'C v1 none' 'C v1 all' 'C v2 all' 'B v2 all' 'D lora all' 'C v1 input-copy-fence'; do
  # shellcheck disable=SC2086  # several arguments
  said=$(timeout 120 python3 -W ignore -m tests.torture.forking $setup 20 | tail -n 1) || said="ended with $?"
  echo "forks, $setup: $said"
done | tee "$results/processes.txt"
said=$(timeout 120 python3 -W ignore -m tests.torture.dropping cuda 20 | tail -n 1) || said="ended with $?"
echo "children that drop everything: $said" | tee -a "$results/processes.txt"
! grep -v 'none:' "$results/processes.txt" | grep -v 'hung 0 failed 0' || status=1
# Two engines that capture graphs at the same time are torch's own trouble: a capture forbids what others allocate.
timeout 240 python3 -m pytest -q -p no:cacheprovider tests/torture/test_engines.py tests/torture/test_toggling.py \
  -k 'not lora' || status=1
exit $status
