file(GLOB KVFIX_STAGING_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cpp/staging/*.cc)
add_library(kvfix_staging STATIC ${KVFIX_STAGING_SOURCES})
target_link_libraries(kvfix_staging PUBLIC kvfix_core kvfix_device)
