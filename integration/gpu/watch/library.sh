# Sourced by the scripts of `watch`, from the root of the checkout: the library, if it was not built before.
if [ ! -e trtllm_kvfix/libkvfix_watch.so ]; then
  build=$(mktemp -d)
  cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DKVFIX_KERNELS=OFF --log-level=WARNING
  cmake --build "$build" --target kvfix_watch --parallel 8
  cp "$build/libkvfix_watch.so" trtllm_kvfix/
fi
export PYTHONUNBUFFERED=1
