# The scripts here source this file, from the root of the checkout. It builds into a folder of its own, $site.
site=$(mktemp -d)
into_site() { python3 -m pip install -q --no-build-isolation --no-deps --no-index --target "$site" "$@"; }
into_site . --config-settings=cmake.define.KVFIX_KERNELS=ON
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
# The stand-in's bound classes, unless the caller does not need them.
if [ -z "${KVFIX_WITHOUT_BOUND:-}" ]; then
  export KVFIX_BOUND="$site/bound"
  cmake -S tests/bound -B "$KVFIX_BOUND" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo --log-level=WARNING \
    -DPython_EXECUTABLE="$(command -v python3)"
  cmake --build "$KVFIX_BOUND"
fi
# side_by_side 'pytest arguments' ...: each selection in a process of its own, at the same time, from the folder $site.
# Shows pytest's output for failures.
side_by_side() {
  (
    number=0
    for selection in "$@"; do
      number=$((number + 1))
      # shellcheck disable=SC2086  # a selection is several arguments
      (python3 -m pytest -q -p no:cacheprovider $selection >"said-$number" 2>&1 || touch "failed-$number") &
    done
    wait
    status=0
    number=0
    for selection in "$@"; do
      number=$((number + 1))
      lines=1
      [ ! -e "failed-$number" ] || { status=1 && lines=80; }
      echo "$selection: $(tail -n "$lines" "said-$number")"
    done
    exit $status
  )
}
