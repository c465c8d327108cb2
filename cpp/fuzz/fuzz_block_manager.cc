// Fuzzes the block manager: bytes become calls (tests/byte_program.h), and every broken promise is a crash.
#include <cstddef>
#include <cstdint>

#include "tests/byte_program.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    kvfix::testing::ByteProgram program({data, size});
    while (!program.done()) {
        program.step();
    }
    program.wind_up();
    return 0;
}
