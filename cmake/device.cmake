find_package(Threads REQUIRED)

file(GLOB KVFIX_DEVICE_SOURCES CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/cpp/device/*.cc ${PROJECT_SOURCE_DIR}/cpp/kernels/*.cc)
add_library(kvfix_device STATIC ${KVFIX_DEVICE_SOURCES})
target_include_directories(kvfix_device PUBLIC ${PROJECT_SOURCE_DIR}/cpp)
target_link_libraries(kvfix_device PUBLIC kvfix_process Threads::Threads ${CMAKE_DL_LIBS})
include(cmake/kernels.cmake)
