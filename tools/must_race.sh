#!/bin/sh
# Runs a stress program that was built without its lock, and succeeds only if ThreadSanitizer reports a data race in it.
# A stress program that passes without the lock could not find a race in the manager either.
set -u

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Without the lock the manager may also hang; the race has been reported by then.
TSAN_OPTIONS=halt_on_error=1 timeout 120 "$@" >"$log" 2>&1
status=$?

if [ "$status" -ne 0 ] && grep -q 'ThreadSanitizer: data race' "$log"; then
  echo "race control: the stress without the lock failed with a data race, as it must"
  exit 0
fi
cat "$log"
echo "race control: exit status $status and no data race reported; the stress program cannot see races"
exit 1
