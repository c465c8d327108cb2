# Options that every C++ target of this project shares. kvfix_core links them PUBLIC, so linking kvfix_core is enough.
# nanobind's own sources do not link them and keep their own warnings.
add_library(kvfix_options INTERFACE)
target_compile_features(kvfix_options INTERFACE cxx_std_20)
target_compile_options(kvfix_options INTERFACE -Wall -Wextra -Wconversion -Wshadow $<$<BOOL:${KVFIX_WERROR}>:-Werror>)
target_compile_definitions(kvfix_options INTERFACE
  $<$<BOOL:${KVFIX_NO_LOCK}>:KVFIX_NO_LOCK=1>
  $<$<BOOL:${KVFIX_PAUSE_POINTS}>:KVFIX_PAUSE_POINTS=1>)

if(KVFIX_SANITIZE)
  target_compile_options(kvfix_options INTERFACE
    -fsanitize=${KVFIX_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(kvfix_options INTERFACE -fsanitize=${KVFIX_SANITIZE})
endif()

if(KVFIX_BUILD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "KVFIX_BUILD_FUZZ needs clang, the compiler is ${CMAKE_CXX_COMPILER_ID}: pass -DCMAKE_CXX_COMPILER=clang++")
  endif()
  # Instruments the core for coverage. The fuzz target itself links -fsanitize=fuzzer, which provides main().
  target_compile_options(kvfix_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
