file(GLOB KVFIX_CANARY_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cpp/canary/*.cc)
add_library(kvfix_canary STATIC ${KVFIX_CANARY_SOURCES})
target_link_libraries(kvfix_canary PUBLIC kvfix_core)
kvfix_precompile_library(kvfix_canary)
