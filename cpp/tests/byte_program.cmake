# Bytes that become calls of a block manager, shared by the simulation, the fuzz target and its replay.
set(KVFIX_BYTE_PROGRAM_DIR ${CMAKE_CURRENT_LIST_DIR})
add_library(kvfix_byte_program STATIC
  ${KVFIX_BYTE_PROGRAM_DIR}/byte_program.cc
  ${KVFIX_BYTE_PROGRAM_DIR}/byte_program_calls.cc
  ${KVFIX_BYTE_PROGRAM_DIR}/byte_program_engine.cc
  ${KVFIX_BYTE_PROGRAM_DIR}/byte_program_names.cc
  ${KVFIX_BYTE_PROGRAM_DIR}/byte_program_preempt.cc
  ${KVFIX_BYTE_PROGRAM_DIR}/program_values.cc
  ${KVFIX_BYTE_PROGRAM_DIR}/shadow_memory.cc)
target_link_libraries(kvfix_byte_program PUBLIC kvfix_core)
