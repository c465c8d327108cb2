add_library(kvfix_flight STATIC ${PROJECT_SOURCE_DIR}/cpp/flight/flight_ring.cc)
target_include_directories(kvfix_flight PUBLIC ${PROJECT_SOURCE_DIR}/cpp)
target_link_libraries(kvfix_flight PUBLIC kvfix_options)
