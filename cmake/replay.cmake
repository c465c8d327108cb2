file(GLOB KVFIX_REPLAY_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cpp/replay/*.cc)
add_library(kvfix_replay STATIC ${KVFIX_REPLAY_SOURCES})
target_link_libraries(kvfix_replay PUBLIC kvfix_core)
kvfix_precompile_library(kvfix_replay)
