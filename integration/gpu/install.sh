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
