# Finds GoogleTest while CMake configures, so before anything is compiled: the one that is installed, or else a release
# with a pinned hash.
set(KVFIX_GTEST_URL https://github.com/google/googletest/releases/download/v1.17.0/googletest-1.17.0.tar.gz
  CACHE STRING "Where GoogleTest is fetched from if none is installed; a mirror's URL or file://")
set(KVFIX_GTEST_SHA256 65fab701d9829d38cb77c14acdc431d2108bfdbf8979e40eb8ae567edf10b27c
  CACHE STRING "SHA-256 of what KVFIX_GTEST_URL names")

find_package(GTest QUIET)
if(GTest_FOUND)
  return()
endif()

# Our own download, because a failed one of FetchContent ends in pages of text about its steps.
set(archive ${PROJECT_BINARY_DIR}/googletest.tar.gz)
set(found "")
if(EXISTS ${archive})
  file(SHA256 ${archive} found)
endif()
if(NOT found STREQUAL KVFIX_GTEST_SHA256)
  message(NOTICE "GoogleTest is not installed; fetching it from ${KVFIX_GTEST_URL}")
  file(DOWNLOAD ${KVFIX_GTEST_URL} ${archive} STATUS status INACTIVITY_TIMEOUT 20)
  list(GET status 0 failed)
  list(GET status 1 why)
  if(NOT failed)
    file(SHA256 ${archive} found)
    if(NOT found STREQUAL KVFIX_GTEST_SHA256)
      set(failed TRUE)
      set(why "its SHA-256 is ${found}, ${KVFIX_GTEST_SHA256} was expected")
    endif()
  endif()
  if(failed)
    file(REMOVE ${archive})
    set(text "GoogleTest is not installed (Debian and Ubuntu: apt install libgtest-dev), and it cannot be fetched from "
      "${KVFIX_GTEST_URL}: ${why}. KVFIX_GTEST_URL may name a mirror. `make test WITHOUT_CPP=1` does without the C++ "
      "tests.")
    string(JOIN "" text ${text})
    message(FATAL_ERROR ${text})
  endif()
endif()

set(BUILD_GMOCK OFF CACHE BOOL "" FORCE)
set(INSTALL_GTEST OFF CACHE BOOL "" FORCE)
include(FetchContent)
# CMake 3.25 does not know SYSTEM and EXCLUDE_FROM_ALL, and takes them for parts of the hash.
FetchContent_Declare(googletest URL ${archive} URL_HASH SHA256=${KVFIX_GTEST_SHA256} DOWNLOAD_EXTRACT_TIMESTAMP OFF)
FetchContent_MakeAvailable(googletest)
