# What is installed names no folder of the machine that built it: two builds of one source by one compiler are equal bit
# for bit, wherever they are. Builds for tests keep their paths, by which a debugger finds the source.
# Of two prefixes that fit, compilers take the later one; the build folder may lie in the source folder. The third is
# how ccache names the source where CCACHE_BASEDIR makes it rewrite paths.
file(RELATIVE_PATH source_from_build ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})
string(REGEX REPLACE "/$" "" source_from_build ${source_from_build})  # some releases of CMake end it with a slash
add_compile_options(
  -ffile-prefix-map=${PROJECT_SOURCE_DIR}=.
  -ffile-prefix-map=${PROJECT_BINARY_DIR}=build
  -ffile-prefix-map=${source_from_build}=.)
