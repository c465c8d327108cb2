// Programs that race by a call of the kernel, or behind one that they leave in the middle, for which a page was open.
#include <mqueue.h>
#include <pthread.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/uio.h>
#include <csetjmp>
#include <csignal>

#include "../harm/programs.h"

namespace harm {
namespace {

struct Waits {
    Pinned pinned;
    Pair pair{SOCK_STREAM};
    std::atomic<int> thread{0};
    pthread_t its{};

    void start(void* (*run)(void*)) {
        pthread_create(&its, nullptr, run, this);
        while (thread == 0) {
            sched_yield();
        }
        until_blocked(thread, SYS_read);
    }
    void wait() {
        thread = static_cast<int>(syscall(SYS_gettid));
        static_cast<void>(!read(pair.ends[0], pinned.page, 4));
    }
    void race() { pinned.page[2048] = 1; }
};
sigjmp_buf place;

PROGRAM(cancelled) {
    Waits waits;
    waits.start([](void* its) -> void* {
        static_cast<Waits*>(its)->wait();
        return nullptr;
    });
    pthread_cancel(waits.its);
    pthread_join(waits.its, nullptr);
    waits.race();
    return 0;
}
PROGRAM(jumped) {
    Waits waits;
    std::signal(SIGUSR1, [](int) { siglongjmp(place, 1); });
    waits.start([](void* its) -> void* {
        if (sigsetjmp(place, 1) == 0) {
            static_cast<Waits*>(its)->wait();
        }
        static_cast<Waits*>(its)->race();
        return nullptr;
    });
    pthread_kill(waits.its, SIGUSR1);
    pthread_join(waits.its, nullptr);
    return 0;
}

char* used(Pinned& pinned) { return pinned.page + 2048; }

// Two messages, of which the second is in what the device writes.
template <typename Call>
int messages(Call call) {
    Pinned pinned;
    const Pair pair(SOCK_DGRAM);
    pair.wake();
    pair.wake();
    std::array<iovec, 2> parts{iovec{pinned.page, 4}, iovec{used(pinned), 4}};
    std::array<mmsghdr, 2> both{};
    for (std::size_t at = 0; at < both.size(); ++at) {
        both[at].msg_hdr.msg_iov = &parts[at];
        both[at].msg_hdr.msg_iovlen = 1;
    }
    say("messages", call(pair.ends[0], both.data()));
    return 0;
}
PROGRAM(recvmmsg) {
    return messages([](int socket, mmsghdr* both) { return ::recvmmsg(socket, both, 2, 0, nullptr); });
}
PROGRAM(sendmmsg) {
    return messages([](int socket, mmsghdr* both) { return ::sendmmsg(socket, both, 2, 0); });
}
template <typename Call>
int from_process(Call call) {
    Pinned pinned;
    std::array<char, 4> other{};
    const iovec here{used(pinned), 4};
    const iovec there{other.data(), 4};
    say("bytes", call(getpid(), &here, 1, &there, 1, 0));
    return 0;
}
PROGRAM(process_vm_readv) { return from_process(::process_vm_readv); }
PROGRAM(process_vm_writev) { return from_process(::process_vm_writev); }
PROGRAM(vmsplice) {
    Pinned pinned;
    std::array<int, 2> ends{};
    static_cast<void>(!pipe(ends.data()));
    const iovec part{used(pinned), 4};
    say("bytes", ::vmsplice(ends[1], &part, 1, 0));
    return 0;
}
int by_queue(bool sends) {
    Pinned pinned;
    const int queue = msgget(IPC_PRIVATE, 0600);
    struct {
        long type = 1;
        std::array<char, 8> text{};
    } message;
    if (sends) {
        say("sent", ::msgsnd(queue, used(pinned), sizeof message.text, 0));
    } else {
        say("sent", ::msgsnd(queue, &message, sizeof message.text, 0));
        say("received", ::msgrcv(queue, used(pinned), sizeof message.text, 0, IPC_NOWAIT));
    }
    return msgctl(queue, IPC_RMID, nullptr);
}
PROGRAM(msgsnd) { return by_queue(true); }
PROGRAM(msgrcv) { return by_queue(false); }

}  // namespace
}  // namespace harm

int main(int, char** arguments) { return harm::programs().at(arguments[1])(); }
