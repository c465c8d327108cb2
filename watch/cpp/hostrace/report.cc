#include "hostrace/report.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>

#include "hostrace/interpose.h"
#include "hostrace/libc.h"
#include "hostrace/thread.h"

namespace hostrace {
namespace {

constexpr std::array kKinds{"copy",
                            "memset",
                            "kernel",
                            "copy of a graph",
                            "memset of a graph",
                            "kernel of a graph",
                            "copy that should have read it",
                            "copy in a conditional body of a graph",
                            "memset in a conditional body of a graph"};
constexpr std::array kGrades{"race", "unordered", "possible"};
constexpr std::array kAccesses{"read", "write", "free"};

// One program may follow another in its process (exec), or in another process that has its number by now, or has it in
// another name space.
constexpr int kProgramsMax = 1 << 16;
int program = 0;

int open_in(const char* folder, const char* suffix, int flags) {
    std::array<char, 1024> path;
    std::array<char, 16> which{};
    if (program != 0) {
        std::snprintf(which.data(), which.size(), "-%d", program);
    }
    std::snprintf(path.data(), path.size(), "%s/%d%s.%s", folder, getpid(), which.data(), suffix);
    // Others may write into the folder: the program may run as another user.
    return folder == nullptr ? -1 : open(path.data(), flags | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
}

// Out of the way: the program's own files have the numbers that they would have without us.
int open_races(const char* folder) {
    const int file = open_in(folder, "races", O_WRONLY | O_APPEND);
    for (int high = 500; file >= 0 && high > file; high /= 2) {  // as high as the program's own limit allows
        if (const int moved = fcntl(file, F_DUPFD_CLOEXEC, high); moved >= 0) {
            close(file);
            return moved;
        }
    }
    return file;
}

// A program that may write no more to files, by its own limit, would be ended by what we write.
class NotEndedByItsLimit {
  public:
    NotEndedByItsLimit() {
        to_linux(SYS_rt_sigpending, &pending_, sizeof pending_);
        to_linux(SYS_rt_sigprocmask, SIG_BLOCK, &kSignal, &mask_, sizeof mask_);
    }
    NotEndedByItsLimit(const NotEndedByItsLimit&) = delete;
    NotEndedByItsLimit& operator=(const NotEndedByItsLimit&) = delete;
    ~NotEndedByItsLimit() {
        const timespec at_once{};
        if ((pending_ & kSignal) == 0) {
            to_linux(SYS_rt_sigtimedwait, &kSignal, nullptr, &at_once, sizeof kSignal);
        }
        to_linux(SYS_rt_sigprocmask, SIG_SETMASK, &mask_, nullptr, sizeof mask_);
    }

  private:
    static constexpr std::uint64_t kSignal = bit_of(SIGXFSZ);
    std::uint64_t pending_ = 0, mask_ = 0;
};

}  // namespace

Counts& counts_in(const char* folder) {
    static Counts spare{};
    int file = -1;
    while ((file = open_in(folder, "counts", O_RDWR | O_EXCL)) < 0 && errno == EEXIST && program < kProgramsMax) {
        ++program;
    }
    void* mapped = MAP_FAILED;
    if (file >= 0) {
        const NotEndedByItsLimit as_we_write;
        if (ftruncate(file, sizeof(Counts)) == 0) {
            mapped = mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        }
        close(file);
    }
    return mapped == MAP_FAILED ? spare : *static_cast<Counts*>(mapped);
}

Report::Report(const char* folder, Counts& counts, const Stacks& stacks)
    : counts_(counts), stacks_(stacks), file_(open_races(folder)), started_ns_(now_ns()) {}

void Report::say_unwatched(const char* folder, const char* text) {
    std::array<char, 1024> room;
    Text line(room.data(), room.size());
    (line << "{").name("note").quoted(text) << "}\n";
    const int file = open_in(folder, "races", O_WRONLY | O_APPEND);
    const NotEndedByItsLimit as_we_write;
    static_cast<void>(!write(file, line.data(), line.size()));
    close(file);
}

Pair Report::say(const Race& race) {
    const Use& use = race.verdict.use;
    const std::uint64_t touched = stacks_.place_here(race.instruction == nullptr ? race.how : race.instruction);
    const std::uint64_t place =
        ((touched * 31 + use.stack) * 31 + static_cast<std::uint64_t>(use.kind) * 16 +
         static_cast<std::uint64_t>(race.verdict.grade) * 4 + static_cast<std::uint64_t>(race.access)) |
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
        count(counts_.pairs_lost);
        pair = kPairsMax - 1;
    } else {
        count(counts_.times[pair]);
    }
    lock_.unlock();
    return pair;
}

void Report::write_race(Pair pair, const Race& race) {
    const Use& use = race.verdict.use;
    const Shape& shape = use.shape;
    std::array<char, 17> thread_name{};
    prctl(PR_GET_NAME, thread_name.data());

    Text text(buffer_.data(), buffer_.size());
    text << "{";
    text.name("number") << pair;
    text.name("grade").quoted(kGrades[static_cast<std::size_t>(race.verdict.grade)]);
    text.name("touch").quoted(kAccesses[static_cast<std::size_t>(race.access)]);
    text.name("how").quoted(race.how == nullptr ? "" : race.how);
    text.name("use").quoted(kKinds[static_cast<std::size_t>(use.kind)]);
    text.name("device").quoted(use.device_writes ? "writes" : "reads");
    text.name("begin") << shape.begin;
    text.name("bytes") << shape.end() - shape.begin;
    text.name("at") << race.verdict.at - shape.begin;
    text.name("width") << shape.width;
    text.name("rows") << shape.rows * shape.slices;
    text.name("stream") << use.stream;
    text.name("age_ns") << now_ns() - use.since_ns;
    text.name("since_ns") << use.since_ns - started_ns_;
    text.name("use_thread") << static_cast<std::uint64_t>(use.thread);
    text.name("touch_thread") << static_cast<std::uint64_t>(self().id);
    text.name("thread_name").quoted(thread_name.data());
    stacks_.print(use.pinned, text.name("pinned_stack"));
    stacks_.print(use.stack, text.name("use_stack"));
    stacks_.print_here(text.name("touch_stack"), race.frames);
    write_line(text << "}\n");
}

void Report::note(const char* text, const char* detail) {
    if (!lock_.lock_unless_mine()) {
        return;
    }
    Text line(buffer_.data(), buffer_.size());
    (line << "{").name("note") << "\"";
    write_line(line.escaped(text).escaped(detail) << "\"}\n");
    lock_.unlock();
}

void Report::write_line(Text& line) {
    const NotEndedByItsLimit as_we_write;
    const char* from = line.data();
    for (const char* const end = from + line.size(); from < end;) {
        const ssize_t written = libc::write(file_, from, static_cast<std::size_t>(end - from));
        if (written <= 0) {
            return;
        }
        from += written;
    }
}

void Report::give_up(Pair pair) {
    given_up_[pair].store(true, std::memory_order_relaxed);
    count(counts_.gave_up);
    note("hold gave up: the device did not finish in time, the touch went on; race ", pair < pairs_ ? "" : "unlisted");
}

void Report::close_in_child() {
    lock_.forget_owner();
    if (file_ >= 0) {
        close(file_);
    }
    file_ = -1;
}

}  // namespace hostrace
