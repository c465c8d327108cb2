# What nearly all files of C++ tests include takes longer to compile than the tests themselves, so it is compiled once.
# Each file still includes what it needs: programs of one file (tests_apart.cmake) are built without this.
function(kvfix_precompile program)
  if(program STREQUAL "kvfix_tests")
    target_precompile_headers(${program} PRIVATE <gtest/gtest.h>
      <algorithm> <array> <atomic> <chrono> <condition_variable> <deque> <functional> <future> <map> <memory> <mutex>
      <numeric> <optional> <random> <set> <span> <sstream> <string> <thread> <unordered_map> <variant> <vector>)
  else()
    target_precompile_headers(${program} REUSE_FROM kvfix_tests)
  endif()
  # ccache cannot tell such builds apart otherwise.
  target_compile_options(${program} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endfunction()

# The same for our libraries, in builds for tests and fuzzing. A user's build stays without.
function(kvfix_precompile_library library)
  if(NOT KVFIX_BUILD_TESTS AND NOT KVFIX_BUILD_FUZZ)
    return()
  endif()
  if(library STREQUAL "kvfix_core")
    target_precompile_headers(kvfix_core PRIVATE <algorithm> <array> <deque> <map> <memory> <mutex> <optional> <span>
      <stdexcept> <string> <string_view> <unordered_map> <utility> <vector>)
  else()
    target_precompile_headers(${library} REUSE_FROM kvfix_core)
  endif()
  target_compile_options(${library} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endfunction()
