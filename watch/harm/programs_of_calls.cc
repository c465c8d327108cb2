// Programs whose calls into the kernel are given addresses in pinned memory beside what the device uses. A call that
// takes something, and fails then, would lose it.
#include <dirent.h>
#include <fcntl.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/timex.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <threads.h>
#include <csignal>

#include <array>
#include <string>
#include <string_view>
#include <thread>

#include "programs.h"

namespace harm {
namespace {

template <typename T>
T* in(char* page, std::size_t at = 64) {
    return reinterpret_cast<T*>(page + at);
}

PROGRAM(messages_into_pinned_memory) {
    Pinned pinned;
    char* const page = pinned.page;
    struct Message {
        long type;
        char text[8];
    };
    const int queue = msgget(IPC_PRIVATE, 0600);
    auto* const message = in<Message>(page);
    *message = {1, "message"};
    say("msgsnd", msgsnd(queue, message, 8, 0));
    *message = {};
    say("msgrcv", msgrcv(queue, message, 8, 0, IPC_NOWAIT));
    std::printf("%s\n", message->text);
    say("msgctl", msgctl(queue, IPC_STAT, in<msqid_ds>(page)));
    say("msgctl", msgctl(queue, IPC_RMID, nullptr));
    mq_attr attributes{0, 4, 64, 0, {}};
    const std::string name = "/harm-" + std::to_string(getpid());
    std::strcpy(page + 1024, name.c_str());
    const mqd_t posix = mq_open(page + 1024, O_CREAT | O_RDWR | O_NONBLOCK, 0600, &attributes);
    if (posix >= 0) {
        std::strcpy(page + 64, "posix");
        say("mq_send", mq_send(posix, page + 64, 6, 3));
        page[64] = 0;
        say("mq_receive", mq_receive(posix, page + 64, 64, in<unsigned>(page, 512)));
        std::printf("%s %u\n", page + 64, *in<unsigned>(page, 512));
        say("mq_getattr", mq_getattr(posix, in<mq_attr>(page)));
        say("mq_unlink", mq_unlink(page + 1024));
    }
    const int set = semget(IPC_PRIVATE, 1, 0600);
    *in<sembuf>(page) = {0, 2, 0};
    say("semop", semop(set, in<sembuf>(page), 1));
    say("semctl", semctl(set, 0, GETVAL));
    say("semctl", semctl(set, 0, IPC_RMID));
    return 0;
}
PROGRAM(datagrams_with_addresses_in_pinned_memory) {
    Pinned pinned;
    char* const page = pinned.page;
    const Pair pair(SOCK_DGRAM);
    std::array<char, 64> data{};
    for (int way = 0; way < 3; ++way) {
        pair.wake();
        auto* const length = in<socklen_t>(page, 512);
        *length = sizeof(sockaddr_un);
        iovec part{data.data(), data.size()};
        auto* const message = way == 1 ? new msghdr{} : in<msghdr>(page, 1024);
        *message = {};
        message->msg_name = page + 64;
        message->msg_namelen = *length;
        message->msg_iov = &part;
        message->msg_iovlen = 1;
        message->msg_control = page + 256;
        message->msg_controllen = 128;
        const long got =
            way == 0 ? recvfrom(pair.ends[0], data.data(), data.size(), MSG_DONTWAIT, in<sockaddr>(page), length)
                     : recvmsg(pair.ends[0], message, MSG_DONTWAIT);
        say("received", got);
        say("nothing is left", recv(pair.ends[0], data.data(), data.size(), MSG_DONTWAIT));
    }
    pair.wake();
    pair.wake();
    auto* const messages = in<mmsghdr>(page, 1024);
    auto* const parts = in<iovec>(page, 64);
    for (int at = 0; at < 2; ++at) {
        parts[at] = {page + 256 + at * 64, 64};
        messages[at] = {};
        messages[at].msg_hdr.msg_iov = parts + at;
        messages[at].msg_hdr.msg_iovlen = 1;
    }
    say("recvmmsg", recvmmsg(pair.ends[0], messages, 2, MSG_DONTWAIT, nullptr));
    std::printf("%u %u %.4s %.4s\n", messages[0].msg_len, messages[1].msg_len, page + 256, page + 320);
    return 0;
}
PROGRAM(connections_into_pinned_memory) {
    Pinned pinned;
    char* const page = pinned.page;
    const int server = socket(AF_INET, SOCK_STREAM, 0);
    auto* const address = in<sockaddr_in>(page);
    *address = {};
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    say("bind", bind(server, in<sockaddr>(page), sizeof *address));
    say("listen", listen(server, 4));
    auto* const length = in<socklen_t>(page, 256);
    *length = sizeof *address;
    say("getsockname", getsockname(server, in<sockaddr>(page), length));
    for (int way = 0; way < 2; ++way) {
        const int client = socket(AF_INET, SOCK_STREAM, 0);
        say("connect", connect(client, in<sockaddr>(page), sizeof *address));
        sockaddr_in own = *address;
        *length = sizeof *address;
        const int got = way == 0 ? accept(server, in<sockaddr>(page), length)
                                 : accept4(server, in<sockaddr>(page), length, SOCK_CLOEXEC);
        say("accepted", got >= 0 ? 0 : -1);
        *address = own;
        say("write", write(client, "data", 4));
        say("read", read(got, page + 512, 4));
        *length = sizeof(int);
        say("getsockopt", getsockopt(client, SOL_SOCKET, SO_ERROR, page + 128, length));
    }
    return 0;
}
PROGRAM(children_told_into_pinned_memory) {
    Pinned pinned;
    char* const page = pinned.page;
    std::fflush(stdout);
    for (int way = 0; way < 4; ++way) {
        const pid_t child = fork();
        if (child == 0) {
            _exit(40 + way);
        }
        auto* const status = in<int>(page);
        auto* const info = in<siginfo_t>(page, 512);
        const long got = way == 0   ? waitpid(child, status, 0)
                         : way == 1 ? wait4(child, status, 0, in<rusage>(page, 128))
                         : way == 2 ? ::wait(status)
                                    : waitid(P_PID, static_cast<id_t>(child), info, WEXITED);
        say("waited", got == child || (way == 3 && got == 0));
        std::printf("status %d\n", way == 3 ? info->si_status : WEXITSTATUS(*status));
    }
    std::strcpy(page + 64, "/bin/true");
    auto** const arguments = in<char*>(page, 256);
    arguments[0] = page + 64;
    arguments[1] = nullptr;
    auto* const id = in<pid_t>(page, 512);
    say("posix_spawn", posix_spawn(id, page + 64, nullptr, nullptr, arguments, environ));
    say("waited", waitpid(*id, in<int>(page, 128), 0) == *id);
    const pid_t child = fork();
    if (child == 0) {
        execv(page + 64, arguments);
        _exit(9);
    }
    say("waited", waitpid(child, in<int>(page, 128), 0) == child);
    std::printf("status %d\n", WEXITSTATUS(*in<int>(page, 128)));
    return 0;
}
PROGRAM(signals_told_into_pinned_memory) {
    Pinned pinned;
    char* const page = pinned.page;
    auto* const set = in<sigset_t>(page);
    sigemptyset(set);
    sigaddset(set, SIGUSR1);
    say("mask", pthread_sigmask(SIG_BLOCK, set, in<sigset_t>(page, 256)));
    for (int way = 0; way < 4; ++way) {
        pthread_kill(pthread_self(), SIGUSR1);
        auto* const info = in<siginfo_t>(page, 512);
        auto* const time = in<timespec>(page, 1024);
        *time = {0, 1000};
        int* const number = in<int>(page, 1040);
        if (way == 3) {
            const int file = signalfd(-1, set, SFD_NONBLOCK);
            say("read", read(file, page + 1536, sizeof(signalfd_siginfo)));
            continue;
        }
        say("taken", way == 0   ? sigwaitinfo(set, info)
                     : way == 1 ? sigtimedwait(set, info, time)
                                : sigwait(set, number));
        say("nothing is left", sigtimedwait(set, info, time));
    }
    struct sigaction action{};
    say("sigaction", sigaction(SIGUSR2, &action, in<struct sigaction>(page, 512)));
    say("sigaction", sigaction(SIGSEGV, nullptr, in<struct sigaction>(page, 512)));
    say("sigaltstack", sigaltstack(nullptr, in<stack_t>(page)));
    return 0;
}
PROGRAM(files_moved_by_offsets_in_pinned_memory) {
    Pinned pinned;
    char* const page = pinned.page;
    const int from = open("from", O_CREAT | O_RDWR, 0600);
    const int to = open("to", O_CREAT | O_RDWR, 0600);
    static_cast<void>(!write(from, "0123456789", 10));
    auto* const offset = in<off_t>(page);
    auto* const other = in<off_t>(page, 128);
    *offset = 2;
    say("sendfile", sendfile(to, from, offset, 4));
    say("at", *offset);
    *offset = 1;
    *other = 6;
    say("copy_file_range", copy_file_range(from, offset, to, other, 3, 0));
    std::printf("at %ld %ld\n", *offset, *other);
    auto* const ends = in<int>(page, 256);
    say("pipe2", pipe2(ends, O_NONBLOCK));
    *offset = 0;
    say("splice", splice(from, offset, ends[1], nullptr, 4, 0));
    say("at", *offset);
    *other = 10;
    say("splice", splice(ends[0], nullptr, to, other, 4, 0));
    say("left", read(ends[0], page + 512, 64));
    std::array<char, 32> text{};
    say("pread", pread(to, text.data(), text.size(), 0));
    std::printf("%s\n", text.data());
    const int event = eventfd(7, EFD_NONBLOCK);
    say("eventfd_read", eventfd_read(event, in<eventfd_t>(page)));
    say("value", static_cast<long>(*in<eventfd_t>(page)));
    *in<eventfd_t>(page) = 5;
    say("write", write(event, page + 64, 8));
    FILE* const file = fdopen(to, "r+");
    std::setvbuf(file, page, _IOFBF, 1024);
    std::fputs("buffered", file);
    say("fclose", fclose(file));
    return 0;
}
PROGRAM(names_in_pinned_memory) {
    Pinned pinned;
    char* const page = pinned.page;
    char* const name = page + 64;
    char* const other = page + 256;
    const auto named = [&](const char* text, const char* second = "") {
        std::strcpy(name, text);
        std::strcpy(other, second);
    };
    named("made", "user.name");
    say("creat", creat(name, 0600) >= 0 ? 0 : -1);
    say("setxattr", setxattr(name, other, "value", 5, 0));
    say("getxattr", getxattr(name, other, page + 512, 64));
    say("listxattr", listxattr(name, page + 512, 64));
    say("removexattr", removexattr(name, other));
    say("chown", chown(name, getuid(), getgid()));
    say("fchmodat", fchmodat(AT_FDCWD, name, 0640, 0));
    say("statvfs", statvfs(name, in<struct statvfs>(page, 512)));
    say("statx", statx(AT_FDCWD, name, 0, STATX_ALL, in<struct statx>(page, 512)));
    auto* const times = in<timespec>(page, 512);
    times[0] = times[1] = {7, 0};
    say("utimensat", utimensat(AT_FDCWD, name, times, 0));
    named("made", "linked");
    say("linkat", linkat(AT_FDCWD, name, AT_FDCWD, other, 0));
    named("linked", "renamed");
    say("renameat2", renameat2(AT_FDCWD, name, AT_FDCWD, other, 0));
    named("made", "pointing");
    say("symlinkat", symlinkat(name, AT_FDCWD, other));
    named("temporary-XXXXXX", "folder-XXXXXX");
    say("mkostemp", mkostemp(name, O_CLOEXEC) >= 0 ? 0 : -1);
    say("unlink", unlink(name));
    say("mkdtemp", mkdtemp(other) == nullptr ? -1 : 0);
    say("rmdir", rmdir(other));
    named("pipe");
    say("mkfifo", mkfifo(name, 0600));
    say("remove", remove(name));
    named(".");
    const int notes = inotify_init1(IN_NONBLOCK);
    say("inotify", inotify_add_watch(notes, name, IN_CREATE));
    say("getdents64", getdents64(open(name, O_RDONLY), page + 1024, 1000) > 0);
    named("user.harm");
    say("memfd", memfd_create(name, 0) >= 0 ? 0 : -1);
    return 0;
}
// The C library makes calls of its own for them.
PROGRAM(commands_in_pinned_memory) {
    Pinned pinned;
    char* const name = pinned.page + 64;
    const auto named = [&](const char* text) { return std::strcpy(name, text); };
    std::fflush(stdout);
    say("system", system(named("exit 7")));
    FILE* const said = popen(named("exit 8"), "r");
    say("popen", said == nullptr ? -1 : pclose(said));
    say("pathconf", pathconf(named("."), _PC_NAME_MAX));
    dirent** found = nullptr;
    say("scandir", scandir(named("/proc/self/task"), &found, nullptr, alphasort) >= 3);
    FILE* const null = fopen("/dev/null", "r");
    say("freopen", freopen(named("/proc/self/stat"), "r", null) != nullptr);
    std::array<char*, 2> environment{std::strcpy(pinned.page + 512, "said=9"), nullptr};
    const auto child = [](auto run) {
        std::fflush(stdout);
        const pid_t id = vfork();
        if (id == 0) {
            run();
            _exit(77);
        }
        int status = 0;
        waitpid(id, &status, 0);
        say("child", WEXITSTATUS(status));
    };
    const char* const given = std::strcpy(pinned.page + 256, "exit $said");
    child([&] { execl(named("/bin/sh"), "sh", "-c", "exit 6", nullptr); });
    child([&] { execlp(named("sh"), "sh", "-c", "exit 5", nullptr); });
    child([&] { execle(named("/bin/sh"), "sh", "-c", given, nullptr, environment.data()); });
    child([&] { execl(named("/nowhere"), nullptr, nullptr); });
    return 0;
}
PROGRAM(times_and_limits_in_pinned_memory) {
    Pinned pinned;
    char* const page = pinned.page;
    auto* const setting = in<itimerspec>(page);
    *setting = {{0, 0}, {0, 1000}};
    const int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    say("timerfd_settime", timerfd_settime(timer, 0, setting, in<itimerspec>(page, 256)));
    say("read", read(timer, page + 64, 8));
    auto* const time = in<timespec>(page);
    for (const int clock : {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID, CLOCK_BOOTTIME}) {
        say("clock_gettime", clock_gettime(clock, time));
        say("clock_getres", clock_getres(clock, time));
    }
    say("gettimeofday", gettimeofday(in<timeval>(page), nullptr));
    say("time", ::time(in<time_t>(page)) > 0);
    auto* const about = in<timex>(page);
    *about = {};
    say("adjtimex", adjtimex(about) >= 0);
    say("sched_getparam", sched_getparam(0, in<sched_param>(page)));
    say("sched_getaffinity", sched_getaffinity(0, sizeof(cpu_set_t), in<cpu_set_t>(page)));
    say("pthread_getaffinity_np", pthread_getaffinity_np(pthread_self(), sizeof(cpu_set_t), in<cpu_set_t>(page)));
    say("sched_rr_get_interval", sched_rr_get_interval(0, time));
    say("getresuid", getresuid(in<uid_t>(page), in<uid_t>(page, 128), in<uid_t>(page, 256)));
    arc4random_buf(page + 64, 300);
    say("arc4random_buf", 0);
    unsigned cpu = 0;
    say("getcpu", syscall(SYS_getcpu, page + 64, &cpu, nullptr));
    auto* const event = in<epoll_event>(page);
    const int set = epoll_create1(0);
    event->events = EPOLLOUT | EPOLLONESHOT;
    say("epoll_ctl", epoll_ctl(set, EPOLL_CTL_ADD, eventfd(0, 0), event));
    *time = {0, 1000};
    say("epoll_pwait2", epoll_pwait2(set, event, 1, nullptr, nullptr));
    say("epoll_pwait", epoll_pwait(set, event, 1, 0, nullptr));
    return 0;
}
// Each of them takes a message, and there is no other.
PROGRAM(many_messages_into_pinned_memory) {
    Pinned pinned;
    const Pair pair(SOCK_DGRAM);
    iovec part{pinned.page, 8};
    mmsghdr message{};
    message.msg_hdr.msg_iov = &part;
    message.msg_hdr.msg_iovlen = 1;
    pair.wake();
    say("recvmmsg", recvmmsg(pair.ends[0], &message, 1, 0, nullptr));
    pair.wake();
    say("recvmmsg", syscall(SYS_recvmmsg, pair.ends[0], &message, 1, 0, nullptr));
    std::printf("%.4s\n", pinned.page);
    return 0;
}
PROGRAM(rare_calls_into_pinned_memory) {
    Pinned pinned;
    char* const page = pinned.page;
    auto* const time = in<timespec>(page);
    *time = {0, 1000};
    say("thrd_sleep", thrd_sleep(time, nullptr));
    std::atomic<bool> ends{false};
    std::thread waits([&] {
        while (!ends) {
            sched_yield();
        }
    });
    *time = {1, 0};
    say("timedjoin", pthread_timedjoin_np(waits.native_handle(), nullptr, time));
    say("clockjoin", pthread_clockjoin_np(waits.native_handle(), nullptr, CLOCK_MONOTONIC, time));
    std::strcpy(page + 128, "worker");
    for (const pthread_t thread : {pthread_self(), waits.native_handle()}) {
        say("setname", pthread_setname_np(thread, page + 128));
        say("getname", pthread_getname_np(thread, page + 256, 32));
        std::printf("%s\n", page + 256);
    }
    ends = true;
    waits.join();
    *in<sched_param>(page) = {};
    say("schedparam", pthread_setschedparam(pthread_self(), SCHED_BATCH, in<sched_param>(page)));
    std::strcpy(page + 128, "/");
    say("ftok", ftok(page + 128, 1) != -1);
    const int folder = open("/proc/self", O_RDONLY | O_DIRECTORY);
    off_t at = 0;
    say("getdirentries", getdirentries(folder, page + 1024, 512, &at) > 0);
    auto* const size = in<winsize>(page);
    *size = {7, 9, 0, 0};
    winsize told{};
    int ends_of_it[2] = {-1, -1};
    say("openpty", openpty(&ends_of_it[0], &ends_of_it[1], nullptr, nullptr, size));
    say("size", ioctl(ends_of_it[1], TIOCGWINSZ, &told));
    std::printf("%d\n", told.ws_row);
    return 0;
}
// The kernel writes the number of the child where the parent says.
PROGRAM(child_whose_number_is_told_into_pinned_memory) {
    Pinned pinned;
    static std::array<char, 1 << 16> stack{};
    int* const number = in<int>(pinned.page);
    const auto ends = [](void*) { return 5; };
    const int child = clone(ends, stack.data() + stack.size(), SIGCHLD | CLONE_PARENT_SETTID, nullptr, number);
    int status = 0;
    static_cast<void>(waitpid(child, &status, 0));
    say("child", WEXITSTATUS(status));
    say("told", *number == child);
    return 0;
}
// As foreign-function interfaces do it: in the library, and not in the program.
PROGRAM(functions_that_are_looked_up_in_the_library) {
    Pinned pinned;
    void* const library = dlopen("libc.so.6", RTLD_NOW);
    const auto look_up = [&]<typename F>(F*, const char* name) { return reinterpret_cast<F*>(dlsym(library, name)); };
    const int file = ::open("/dev/zero", O_RDONLY);
    say("read", look_up(&::read, "read")(file, pinned.page, 16));
    say("stat", look_up(&::stat, "stat")("/", in<struct stat>(pinned.page)));
    const auto set = look_up(&::signal, "signal");
    const auto before = set(SIGSEGV, [](int) { _exit(3); });
    say("handler", before == SIG_DFL);
    pinned.page[0] = 1;
    say("none", look_up(&::getpid, "no such function") == nullptr && dlerror() != nullptr);
    say("some", look_up(&::getpid, "getpid")() == getpid() && dlerror() == nullptr);
    return 0;
}
// Its own functions of these names call the C library's read and pthread_sigmask.
PROGRAM(calls_of_a_library_that_is_bound_deeply) {
    Pinned pinned;
    void* const library = dlopen(std::getenv("HARM_LIBRARY"), RTLD_NOW | RTLD_DEEPBIND);
    const auto its_read = reinterpret_cast<decltype(&::read)>(dlsym(library, "its_read"));
    const auto its_sigmask = reinterpret_cast<decltype(&pthread_sigmask)>(dlsym(library, "its_sigmask"));
    const int file = ::open("/dev/zero", O_RDONLY);
    pinned.page[1] = 5;
    say("read", its_read(file, pinned.page, 16));
    say("byte", pinned.page[1]);
    sigset_t all;
    sigfillset(&all);
    say("block", its_sigmask(SIG_BLOCK, &all, nullptr));
    pinned.page[1] = 7;
    say("raw", raw_read(file, pinned.page, 16));
    say("byte", pinned.page[1]);
    return 0;
}
// It may write no more to files: what would be written all the same ends it.
void let_no_file_grow() {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_FSIZE, &none);
}
void say_whether_one_grew() {
    sigset_t pending;
    sigpending(&pending);
    say("pending", sigismember(&pending, SIGXFSZ));
}
PROGRAM(files_that_may_not_grow) {
    let_no_file_grow();
    Pinned pinned;
    pinned.page[0] = 1;
    say_whether_one_grew();
    return 0;
}
PROGRAM(files_that_may_no_longer_grow) {
    Pinned pinned;
    let_no_file_grow();
    std::setvbuf(stderr, pinned.page, _IOFBF, 64);  // the report has a note about that
    say_whether_one_grew();
    std::setvbuf(stderr, nullptr, _IONBF, 0);
    return 0;
}
// The driver opens its devices once more where somebody listens to it: their numbers are not ours.
int files_below(int end) {
    Pinned pinned;
    pinned.cuda.finish();
    int files = 0;
    for (int number = 0; number < end; ++number) {
        std::array<char, 256> target{};
        const std::string path = "/proc/self/fd/" + std::to_string(number);
        files += readlink(path.c_str(), target.data(), target.size()) > 0 &&
                         !std::string_view(target.data()).starts_with("/dev/nvidia")
                     ? 1
                     : 0;
    }
    return files;
}
PROGRAM(numbers_of_its_files) {
    say("files", files_below(256));
    return 0;
}
PROGRAM(numbers_of_few_files) {
    const rlimit few{64, 64};
    setrlimit(RLIMIT_NOFILE, &few);
    say("files", files_below(60));
    return 0;
}

}  // namespace
}  // namespace harm
