# The extension module trtllm_kvfix._core. SKBUILD_SABI_COMPONENT is Development.SABIModule if the stable ABI can be
# used (CPython 3.12 and later, not free-threaded). Otherwise it is empty, and nanobind ignores STABLE_ABI.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})
find_package(nanobind CONFIG REQUIRED)
# nanobind's sources are compiled here, from wherever pip has put them (reproducible.cmake).
add_compile_options(-ffile-prefix-map=${NB_DIR}=nanobind)

file(GLOB KVFIX_BINDINGS_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cpp/bindings/*.cc)
# Some compilers are installed without their link-time optimizer, so core.cmake has tried it.
if(KVFIX_LTO)
  set(KVFIX_BINDINGS_LTO LTO)
endif()
nanobind_add_module(_core
  STABLE_ABI FREE_THREADED NB_STATIC NOMINSIZE ${KVFIX_BINDINGS_LTO} NB_SUPPRESS_WARNINGS ${KVFIX_BINDINGS_SOURCES})
target_link_libraries(_core PRIVATE kvfix_canary kvfix_core kvfix_flight kvfix_lanes kvfix_replay)
target_compile_definitions(_core PRIVATE KVFIX_BUILD_TYPE="$<CONFIG>")
install(TARGETS _core LIBRARY DESTINATION trtllm_kvfix)
