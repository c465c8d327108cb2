file(GLOB KVFIX_LANES_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cpp/lanes/*.cc)
add_library(kvfix_lanes STATIC ${KVFIX_LANES_SOURCES})
target_link_libraries(kvfix_lanes PUBLIC kvfix_staging)
