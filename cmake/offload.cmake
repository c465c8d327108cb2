file(GLOB KVFIX_OFFLOAD_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cpp/offload/*.cc)
add_library(kvfix_offload STATIC ${KVFIX_OFFLOAD_SOURCES})
target_link_libraries(kvfix_offload PUBLIC kvfix_staging)
