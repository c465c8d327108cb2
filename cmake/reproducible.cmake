# Installed files name no folder of the machine that built them, so two builds of one source by one compiler are equal
# bit for bit, wherever they are made. Builds for tests keep their paths, so that a debugger finds the source.
# If two prefixes match, compilers take the later one; the build folder may lie in the source folder. The third one is
# what ccache calls the source if CCACHE_BASEDIR makes it rewrite paths.
file(RELATIVE_PATH source_from_build ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})
string(REGEX REPLACE "/$" "" source_from_build ${source_from_build})  # some releases of CMake add a slash
add_compile_options(
  -ffile-prefix-map=${PROJECT_SOURCE_DIR}=.
  -ffile-prefix-map=${PROJECT_BINARY_DIR}=build
  -ffile-prefix-map=${source_from_build}=.)
