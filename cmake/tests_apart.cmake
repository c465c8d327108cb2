# A program for each file of tests. tests/mutants builds these, so that a mistake costs what its own test compiles and
# links. Nobody else wants them: every file of tests would be compiled twice.
option(KVFIX_TESTS_APART "Offer a program for each file of C++ tests, named as the file" OFF)

function(kvfix_tests_apart program)
  if(NOT KVFIX_TESTS_APART)
    return()
  endif()
  get_target_property(libraries ${program} LINK_LIBRARIES)
  foreach(source ${ARGN})
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} EXCLUDE_FROM_ALL ${source})
    target_link_libraries(${name} PRIVATE ${libraries})
  endforeach()
endfunction()
