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
