# The library of `trtllm-kvfix watch`, which is loaded into the programs that are watched. It knows CUDA by its own
# declarations, so it is built everywhere; stepping over an instruction is written for x86-64 Linux.
if(NOT (CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64"))
  message(STATUS "trtllm-kvfix watch: not on ${CMAKE_SYSTEM_NAME} ${CMAKE_SYSTEM_PROCESSOR}")
  return()
endif()
find_package(Threads REQUIRED)

file(GLOB KVFIX_WATCH_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cpp/watch/*.cc)
add_library(kvfix_watch SHARED ${KVFIX_WATCH_SOURCES})
target_include_directories(kvfix_watch PRIVATE ${PROJECT_SOURCE_DIR}/cpp)
target_link_libraries(kvfix_watch PRIVATE kvfix_options Threads::Threads ${CMAKE_DL_LIBS})
target_compile_options(kvfix_watch PRIVATE -fno-exceptions)
# It is preloaded into programs with a C++ library of their own: it brings its own along and shows nothing of it.
set(exports ${PROJECT_SOURCE_DIR}/cpp/watch/exports.map)
target_link_options(kvfix_watch PRIVATE -static-libstdc++ -static-libgcc LINKER:--version-script=${exports})
set_target_properties(kvfix_watch PROPERTIES LINK_DEPENDS ${exports})
if(SKBUILD)
  install(TARGETS kvfix_watch LIBRARY DESTINATION trtllm_kvfix)
endif()
