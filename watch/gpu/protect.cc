// What a machine takes to protect pages against writing and to open them again, by each means that Linux has:
// `protect` prints a line of numbers for each means, count of pages and count of other threads that run meanwhile. All
// pages have been written before. Page by page, every second page is changed, so that no call can take its neighbour.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kPagesMax = 2 * 1024;
constexpr int kTimes = 201;

using Change = std::function<bool(char* begin, std::size_t bytes, bool open)>;

struct Means {
    const char* name;
    Change change;
    bool page_by_page;
};

int registered_file(char* memory) {
    const int file = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
    uffdio_api api{UFFD_API, UFFD_FEATURE_PAGEFAULT_FLAG_WP, 0};
    uffdio_register all{};
    all.range = {reinterpret_cast<std::uintptr_t>(memory), kPagesMax * kPage};
    all.mode = UFFDIO_REGISTER_MODE_WP;
    const bool works = file >= 0 && ioctl(file, UFFDIO_API, &api) == 0 && ioctl(file, UFFDIO_REGISTER, &all) == 0;
    return works ? file : -1;
}

// Microseconds for both, or less than 0 where the machine has no such means.
double median_us(const Means& means, char* memory, std::size_t pages) {
    std::vector<double> took;
    for (int time = 0; time < kTimes; ++time) {
        for (std::size_t at = 0; at < kPagesMax; ++at) {
            memory[at * kPage] = 1;
        }
        const auto begin = std::chrono::steady_clock::now();
        for (const bool open : {false, true}) {
            const std::size_t calls = means.page_by_page ? pages : 1;
            for (std::size_t at = 0; at < calls; ++at) {
                if (!means.change(memory + 2 * at * kPage, means.page_by_page ? kPage : pages * kPage, open)) {
                    return -1;
                }
            }
        }
        const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - begin;
        took.push_back(us.count());
    }
    std::nth_element(took.begin(), took.begin() + kTimes / 2, took.end());
    return took[kTimes / 2];
}

}  // namespace

int main() {
    const int private_memory = MAP_PRIVATE | MAP_ANONYMOUS;
    void* const made = mmap(nullptr, kPagesMax * kPage, PROT_READ | PROT_WRITE, private_memory, -1, 0);
    auto* const memory = static_cast<char*>(made);
    madvise(memory, kPagesMax * kPage, MADV_NOHUGEPAGE);
    const Change by_mprotect = [](char* begin, std::size_t bytes, bool open) {
        return mprotect(begin, bytes, open ? PROT_READ | PROT_WRITE : PROT_READ) == 0;
    };
    int file = -1;
    const Change by_userfaultfd = [&](char* begin, std::size_t bytes, bool open) {
        uffdio_writeprotect change{};
        change.range = {reinterpret_cast<std::uintptr_t>(begin), bytes};
        change.mode = open ? 0 : UFFDIO_WRITEPROTECT_MODE_WP;
        return ioctl(file, UFFDIO_WRITEPROTECT, &change) == 0;
    };
    const int key = pkey_alloc(0, 0);
    // Of the calling thread alone, and of all pages that have the key: there are 15 keys.
    const Change by_key = [&](char*, std::size_t, bool open) {
        return key >= 0 && pkey_set(key, open ? 0 : PKEY_DISABLE_WRITE) == 0;
    };
    const std::vector<Means> all{{"mprotect", by_mprotect, false},
                                 {"mprotect, page by page", by_mprotect, true},
                                 {"userfaultfd", by_userfaultfd, false},
                                 {"userfaultfd, page by page", by_userfaultfd, true},
                                 {"protection key", by_key, false}};
    for (const unsigned others : {0U, 8U}) {
        std::atomic<bool> ends{false};
        std::vector<std::thread> threads;
        for (unsigned at = 0; at < others; ++at) {
            threads.emplace_back([&] {
                while (!ends) {
                    std::this_thread::yield();
                }
            });
        }
        for (const Means& means : all) {
            file = means.name[0] == 'u' ? registered_file(memory) : -1;
            for (const std::size_t pages : {1U, 20U, 200U, 1000U}) {
                std::printf("%s|%zu|%u|%.3f\n", means.name, pages, others, median_us(means, memory, pages));
            }
            close(file);
        }
        ends = true;
        for (std::thread& thread : threads) {
            thread.join();
        }
    }
}
