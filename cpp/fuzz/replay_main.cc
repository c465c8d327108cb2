// replay_block_manager FILE...: runs inputs of the fuzz target without a fuzzer, so that a finding can be examined with
// any compiler.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

// A folder stands for the files in it.
std::vector<std::filesystem::path> inputs(int argc, char** argv) {
    std::vector<std::filesystem::path> files;
    for (int i = 1; i < argc; ++i) {
        if (std::filesystem::is_directory(argv[i])) {
            for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
                files.push_back(entry.path());
            }
        } else {
            files.emplace_back(argv[i]);
        }
    }
    return files;
}

bool replay(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    if (!in) {
        std::fprintf(stderr, "%s: cannot be read\n", file.c_str());
        return false;
    }
    const std::string bytes(std::istreambuf_iterator<char>(in), {});
    try {
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: %s\n", file.c_str(), error.what());
        return false;
    }
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    const auto files = inputs(argc, argv);
    int failed = 0;
    for (const auto& file : files) {
        failed += replay(file) ? 0 : 1;
    }
    std::printf("%zu inputs, %d failed\n", files.size(), failed);
    return failed == 0 && !files.empty() ? 0 : 1;
}
