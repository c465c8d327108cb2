#include "process/home_process.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <string>

namespace kvfix {
namespace {

std::atomic<std::uint64_t> forks_so_far = 0;

void count_fork() { forks_so_far.fetch_add(1, std::memory_order_relaxed); }

[[maybe_unused]] const int kRegistered = pthread_atfork(nullptr, nullptr, &count_fork);

}  // namespace

std::uint64_t forks() noexcept { return forks_so_far.load(std::memory_order_relaxed); }

std::string HomeProcess::refusal(const std::string& what) {
    return what + " was made in a parent of this process " + std::to_string(getpid()) +
           ": fork() copied its books, not what they are about; make one here, or start processes with spawn";
}

void HomeProcess::refuse(const char* what) { throw std::runtime_error(refusal(what)); }

}  // namespace kvfix
