#include "watch/report.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>

#include "watch/thread.h"

namespace kvfix::watch {
namespace {

constexpr std::uint64_t kFormat = 1;

constexpr std::array kKinds{"copy", "memset", "kernel", "copy of a graph", "memset of a graph", "kernel of a graph"};
constexpr std::array kAccesses{"read", "write", "free"};

void write_all(int file, const char* text, std::size_t bytes) {
    while (bytes > 0) {
        const ssize_t written = write(file, text, bytes);
        if (written <= 0) {
            return;
        }
        text += written;
        bytes -= static_cast<std::size_t>(written);
    }
}

}  // namespace

void Report::open(const char* folder) {
    started_ns_ = now_ns();
    if (folder == nullptr) {
        return;
    }
    std::array<char, 1024> path;
    std::snprintf(path.data(), path.size(), "%s/%d.races", folder, getpid());
    file_ = ::open(path.data(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    std::snprintf(path.data(), path.size(), "%s/%d.counts", folder, getpid());
    const int counts = ::open(path.data(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (counts >= 0) {
        if (ftruncate(counts, sizeof(Numbers)) == 0) {
            void* mapped = mmap(nullptr, sizeof(Numbers), PROT_READ | PROT_WRITE, MAP_SHARED, counts, 0);
            numbers_ = mapped == MAP_FAILED ? &spare_ : static_cast<Numbers*>(mapped);
        }
        ::close(counts);
    }
    numbers_->pid = static_cast<std::uint64_t>(getpid());
    numbers_->format = kFormat;
}

void Report::update() {
    numbers_->guarded = counts_.guarded.load(std::memory_order_relaxed);
    numbers_->faults_stale = counts_.faults_stale.load(std::memory_order_relaxed);
    numbers_->steps = counts_.steps.load(std::memory_order_relaxed);
    numbers_->dropped = counts_.dropped.load(std::memory_order_relaxed);
}

Pair Report::say(const Race& race) {
    const Use& use = race.verdict.use;
    const std::uint64_t touched = stacks_.place_here(race.instruction == nullptr ? race.how : race.instruction);
    const std::uint64_t place = ((touched * 31 + use.stack) * 31 + static_cast<std::uint64_t>(use.kind) * 4 +
                                 static_cast<std::uint64_t>(race.access)) |
                                1;
    if (!lock_.lock_unless_mine()) {
        return kPairsMax - 1;
    }
    Pair pair = 0;
    while (pair < pairs_ && places_[pair] != place) {
        ++pair;
    }
    if (pair == pairs_ && pairs_ < kPairsMax - 1) {
        places_[pairs_++] = place;
        write_race(pair, race);
    }
    if (pair == pairs_) {
        ++numbers_->pairs_lost;
        pair = kPairsMax - 1;
    } else {
        ++numbers_->times[pair];
    }
    update();
    lock_.unlock();
    return pair;
}

void Report::write_race(Pair pair, const Race& race) {
    const Use& use = race.verdict.use;
    const Shape& shape = use.shape;
    const std::uint64_t now = now_ns();
    std::array<char, 17> thread_name{};
    prctl(PR_GET_NAME, thread_name.data());

    Text text(buffer_.data(), buffer_.size() - 8);
    text << "race " << std::uint64_t{pair} << "\ngrade " << (use.certain ? "race" : "possible") << "\ntouch "
         << kAccesses[static_cast<std::size_t>(race.access)] << "\nhow " << (race.how == nullptr ? "" : race.how)
         << "\nuse " << kKinds[static_cast<std::size_t>(use.kind)] << "\ndevice "
         << (use.device_writes ? "writes" : "reads");
    (text << "\nbegin ").hex(shape.begin);
    text << "\nbytes " << shape.end() - shape.begin << "\nat " << race.verdict.at - shape.begin << "\nwidth "
         << shape.width << "\nrows " << shape.rows * shape.slices;
    (text << "\nstream ").hex(use.stream);
    text << "\nage_ns " << now - use.since_ns << "\nsince_ns " << use.since_ns - started_ns_ << "\nuse_thread "
         << static_cast<std::uint64_t>(use.thread) << "\ntouch_thread " << static_cast<std::uint64_t>(self().id)
         << "\ntouch_thread_name " << thread_name.data() << "\nstack use\n";
    stacks_.print(use.stack, text);
    text << "stack touch\n";
    stacks_.print_here(text, race.frames);
    text << "end\n";
    write_all(file_, text.data(), text.size());
}

void Report::note(const char* text, const char* detail) {
    if (!lock_.lock_unless_mine()) {
        return;
    }
    Text line(buffer_.data(), buffer_.size());
    line << "note " << text << detail << "\n";
    write_all(file_, line.data(), line.size());
    lock_.unlock();
}

void Report::give_up(Pair pair) {
    given_up_[pair].store(true, std::memory_order_relaxed);
    ++numbers_->gave_up;
    note("hold gave up: the device did not finish in time, the touch went on; race ", pair < pairs_ ? "" : "unlisted");
}

void Report::close_in_child() {
    lock_.reset();
    if (file_ >= 0) {
        ::close(file_);
    }
    file_ = -1;
    numbers_ = &spare_;
}

}  // namespace kvfix::watch
