file(GLOB KVFIX_PROCESS_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cpp/process/*.cc)
add_library(kvfix_process STATIC ${KVFIX_PROCESS_SOURCES})
target_include_directories(kvfix_process PUBLIC ${PROJECT_SOURCE_DIR}/cpp)
target_link_libraries(kvfix_process PUBLIC kvfix_options)
