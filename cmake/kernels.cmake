# If nvcc is found, compiles the CUDA kernels into one fat binary and embeds it in kvfix_device. Without nvcc the
# library builds just the same, and uses a GPU without kernels.
set(KVFIX_KERNELS AUTO CACHE STRING "Embed CUDA kernels: AUTO (where nvcc serves), ON (or fail), OFF")
set_property(CACHE KVFIX_KERNELS PROPERTY STRINGS AUTO ON OFF)

# Sets KVFIX_NVCC_COMMAND, or KVFIX_KERNELS_WHY_NOT.
function(kvfix_find_nvcc)
  if(NOT KVFIX_KERNELS)
    set(KVFIX_KERNELS_WHY_NOT "KVFIX_KERNELS is ${KVFIX_KERNELS}" PARENT_SCOPE)
    return()
  endif()
  find_program(KVFIX_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin)
  if(NOT KVFIX_NVCC)
    set(KVFIX_KERNELS_WHY_NOT "no nvcc on the path or in CUDA_HOME" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${KVFIX_NVCC} --version OUTPUT_VARIABLE answer ERROR_VARIABLE answer)
  string(REGEX MATCH "release ([0-9.]+)" found "${answer}")
  if(CMAKE_MATCH_1 VERSION_LESS 12.0)
    set(KVFIX_KERNELS_WHY_NOT "${KVFIX_NVCC} is of CUDA '${CMAKE_MATCH_1}', 12.0 is the oldest that serves" PARENT_SCOPE)
    return()
  endif()
  set(KVFIX_NVCC_VERSION ${CMAKE_MATCH_1} PARENT_SCOPE)
  # nvcc refuses host compilers that are newer than itself. Its own default may still work then.
  set(probe ${PROJECT_BINARY_DIR}/kernels/probe.cu)
  file(WRITE ${probe} "#include <cstdint>\n__global__ void probe(std::uint32_t) {}\n")
  foreach(host IN ITEMS "-ccbin;${CMAKE_CXX_COMPILER}" "")
    execute_process(COMMAND ${KVFIX_NVCC} ${host} -std=c++17 --fatbin ${probe} -o ${probe}.fatbin
      RESULT_VARIABLE failed OUTPUT_VARIABLE answer ERROR_VARIABLE answer)
    if(NOT failed)
      set(KVFIX_NVCC_COMMAND ${KVFIX_NVCC} ${host} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(KVFIX_KERNELS_WHY_NOT "${KVFIX_NVCC} compiles nothing here: ${answer}" PARENT_SCOPE)
endfunction()

# Machine code for data-centre GPUs, and portable code of the last of them for later GPUs.
function(kvfix_embed_kernels)
  set(machine 80 90)
  if(KVFIX_NVCC_VERSION VERSION_GREATER_EQUAL 12.8)
    list(APPEND machine 100)
  endif()
  list(GET machine -1 newest)
  set(targets -gencode arch=compute_${newest},code=compute_${newest})
  set(built "")
  foreach(arch IN LISTS machine)
    list(APPEND targets -gencode arch=compute_${arch},code=sm_${arch})
    string(APPEND built "sm_${arch} ")
  endforeach()
  string(APPEND built "compute_${newest}")

  set(kernels ${PROJECT_SOURCE_DIR}/cpp/kernels)
  set(out ${PROJECT_BINARY_DIR}/kernels)
  set(embed ${PROJECT_SOURCE_DIR}/cmake/embed_bytes.cmake)
  # Never with -Werror: nvcc writes that option into its output, and all builds of one source must be equal.
  add_custom_command(OUTPUT ${out}/kernels_fatbin.inc
    COMMAND ${KVFIX_NVCC_COMMAND} -std=c++17 -O3
      -I${PROJECT_SOURCE_DIR}/cpp ${targets} --fatbin ${kernels}/kernels.cu -o ${out}/kernels.fatbin
    COMMAND ${CMAKE_COMMAND} -DINPUT=${out}/kernels.fatbin -DOUTPUT=${out}/kernels_fatbin.inc -P ${embed}
    DEPENDS ${kernels}/kernels.cu ${kernels}/bulk_copy.cuh ${kernels}/calls.h ${kernels}/digest.h ${embed}
    COMMENT "Compiling the CUDA kernels (${built})" VERBATIM COMMAND_EXPAND_LISTS)
  set_source_files_properties(${kernels}/embedded.cc PROPERTIES
    OBJECT_DEPENDS ${out}/kernels_fatbin.inc
    INCLUDE_DIRECTORIES ${out}
    COMPILE_DEFINITIONS "KVFIX_KERNELS_BUILT=\"${built}\"")
  message(STATUS "CUDA kernels: ${built} (nvcc ${KVFIX_NVCC_VERSION})")
endfunction()

kvfix_find_nvcc()
if(KVFIX_NVCC_COMMAND)
  kvfix_embed_kernels()
elseif(KVFIX_KERNELS STREQUAL "ON")
  message(FATAL_ERROR "CUDA kernels: ${KVFIX_KERNELS_WHY_NOT}")
else()
  message(STATUS "CUDA kernels: none (${KVFIX_KERNELS_WHY_NOT})")
endif()
