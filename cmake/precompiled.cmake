# What nearly all files of a program include takes longer to compile than what is theirs, so it is compiled once. Each
# file still includes what it needs: programs of one file (tests_apart.cmake) are built without this, and so is what a
# user builds.
#
# The owner compiles the headers that follow, and others use its.
function(kvfix_precompile_once target owner)
  if(target STREQUAL owner)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
  # ccache cannot tell such builds apart otherwise.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endfunction()

function(kvfix_precompile program)
  kvfix_precompile_once(${program} kvfix_tests <gtest/gtest.h>
    <algorithm> <array> <atomic> <chrono> <condition_variable> <deque> <functional> <future> <map> <memory> <mutex>
    <numeric> <optional> <random> <set> <span> <sstream> <string> <thread> <unordered_map> <variant> <vector>)
endfunction()

function(kvfix_precompile_library library)
  if(KVFIX_BUILD_TESTS OR KVFIX_BUILD_FUZZ)
    kvfix_precompile_once(${library} kvfix_core <algorithm> <array> <deque> <map> <memory> <mutex> <optional> <span>
      <stdexcept> <string> <string_view> <unordered_map> <utility> <vector>)
  endif()
endfunction()
