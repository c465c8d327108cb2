// Programs that run on pinned memory: their threads' stacks, those of contexts and of handlers, what is saved of them, and
// code. The kernel needs room on a stack before any handler starts there.
#include <sys/resource.h>
#include <ucontext.h>
#include <csetjmp>
#include <csignal>

#include "programs.h"

namespace harm {
namespace {

constexpr std::size_t kStack = std::size_t{256} << 10;

// What a part of a program runs on, with a buffer on it that the device fills meanwhile.
struct Inside {
    std::atomic<char*> buffer{nullptr};
    std::atomic<bool> goes_on{false};
    Cuda* cuda = nullptr;
    ucontext_t caller{}, here{};
} inside;

pthread_t thread_on(char* stack, void* (*run)(void*)) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, kStack);
    pthread_t thread{};
    pthread_create(&thread, &attributes, run, stack);
    return thread;
}

void count_beside(const volatile char* buffer) {
    volatile int beside = 0;
    while (beside < 3) {
        beside = beside + 1;
    }
    std::printf("beside %d, %d\n", beside, buffer[0]);
}

PROGRAM(stack_of_a_thread_in_pinned_memory) {
    Cuda cuda;
    const pthread_t thread = thread_on(cuda.pinned(kStack), [](void*) -> void* {
        std::array<char, 256> buffer{};
        inside.buffer = buffer.data();
        while (!inside.goes_on) {
            sched_yield();
        }
        count_beside(buffer.data() + 128);
        return nullptr;
    });
    while (inside.buffer == nullptr) {
        sched_yield();
    }
    cuda.close();
    cuda.fetch(inside.buffer, 64);
    inside.goes_on = true;
    pthread_join(thread, nullptr);
    cuda.finish();
    return 0;
}
// The smallest that a thread can have.
PROGRAM(copies_on_a_small_stack) {
    static Cuda cuda;
    static char* const memory = mapped(4 * kPage) + 100;
    for (void* (*run)(void*) : {
             +[](void*) -> void* { return cuda.use(), cuda.pin(memory, 2 * kPage), nullptr; },
             +[](void*) -> void* { return cuda.use(), cuda.send(memory, 2 * kPage), cuda.wait(), nullptr; },
         }) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        say("stack", pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN));
        pthread_t thread{};
        say("thread", pthread_create(&thread, &attributes, run, nullptr));
        pthread_join(thread, nullptr);
    }
    return 0;
}
// It registers its own, which it has had for long.
PROGRAM(stack_that_its_thread_registers) {
    Cuda cuda;
    inside.cuda = &cuda;
    const pthread_t thread = thread_on(mapped(kStack), [](void* stack) -> void* {
        std::array<char, 256> buffer{};
        inside.cuda->use();
        inside.cuda->pin(stack, kStack);
        inside.cuda->close();
        inside.cuda->send(buffer.data(), 64);
        count_beside(buffer.data() + 128);
        inside.cuda->finish();
        return nullptr;
    });
    pthread_join(thread, nullptr);
    return 0;
}
PROGRAM(stack_of_a_context_in_pinned_memory) {
    Cuda cuda;
    getcontext(&inside.here);
    inside.here.uc_stack.ss_sp = cuda.pinned(kStack);
    inside.here.uc_stack.ss_size = kStack;
    inside.here.uc_link = &inside.caller;
    makecontext(
        &inside.here,
        [] {
            std::array<char, 256> buffer{};
            inside.buffer = buffer.data();
            swapcontext(&inside.here, &inside.caller);
            count_beside(buffer.data() + 128);
        },
        0);
    swapcontext(&inside.caller, &inside.here);
    cuda.close();
    cuda.fetch(inside.buffer, 64);
    swapcontext(&inside.caller, &inside.here);
    cuda.finish();
    return 0;
}
void handle(Cuda& cuda, char* stack) {
    cuda.close();
    cuda.fetch(stack + kStack - 2048, 64);
    struct sigaction action{};
    action.sa_flags = SA_ONSTACK;
    action.sa_handler = [](int) { count_beside("x"); };
    sigaction(SIGUSR1, &action, nullptr);
    say("raised", raise(SIGUSR1));
    cuda.finish();
}
PROGRAM(stack_for_handlers_in_pinned_memory) {
    Cuda cuda;
    char* const memory = cuda.pinned(kStack);
    const stack_t stack{memory, 0, kStack};
    say("stack", sigaltstack(&stack, nullptr));
    handle(cuda, memory);
    return 0;
}
PROGRAM(stack_for_handlers_that_is_registered) {
    Cuda cuda;
    char* const memory = mapped(kStack);
    const stack_t stack{memory, 0, kStack};
    say("stack", sigaltstack(&stack, nullptr));
    cuda.pin(memory, kStack);
    handle(cuda, memory);
    return 0;
}
PROGRAM(contexts_in_pinned_memory) {
    Pinned pinned;
    auto* const first = reinterpret_cast<ucontext_t*>(pinned.page + 64);
    auto* const second = reinterpret_cast<ucontext_t*>(pinned.page + 3072);
    volatile int times = 0;
    say("context", getcontext(first));
    times = times + 1;
    if (times == 1) {
        setcontext(first);
    }
    volatile bool came_back = false;
    say("context", getcontext(second));
    if (!came_back) {
        came_back = true;
        say("changed", swapcontext(first, second));
    }
    say("times", times);
    return 0;
}
PROGRAM(masks_of_jumps_in_pinned_memory) {
    Pinned pinned;
    auto& place = *reinterpret_cast<sigjmp_buf*>(pinned.page + 64);
    const auto block = [](int signal) {
        sigset_t mask;
        sigemptyset(&mask);
        sigaddset(&mask, signal);
        sigprocmask(SIG_SETMASK, &mask, nullptr);
    };
    block(SIGUSR1);
    if (sigsetjmp(place, 1) == 0) {
        block(SIGUSR2);
        siglongjmp(place, 1);
    }
    sigset_t mask;
    sigprocmask(SIG_BLOCK, nullptr, &mask);
    std::printf("%d %d\n", sigismember(&mask, SIGUSR1), sigismember(&mask, SIGUSR2));
    return 0;
}
int runs_code_in_registered_memory(Cuda& cuda) {
    char* const memory = mapped(kStack, PROT_READ | PROT_WRITE | PROT_EXEC);
    std::memcpy(memory + 1024, kReturnsSeven.data(), kReturnsSeven.size());
    __builtin___clear_cache(memory, memory + kPage);
    const auto run = reinterpret_cast<int (*)()>(memory + 1024);
    cuda.pin(memory, kStack);
    cuda.close();
    cuda.send(memory, 64);
    say("meanwhile", run());
    cuda.finish();
    say("behind it", run());
    return 0;
}
PROGRAM(code_in_registered_memory) {
    Cuda cuda;
    return runs_code_in_registered_memory(cuda);
}
// So nobody can ask the kernel either which memory is code.
PROGRAM(code_in_registered_memory_where_no_file_can_be_opened) {
    Cuda cuda;
    cuda.fetch(cuda.pinned(kPage), 64);
    cuda.wait();
    const rlimit none{0, 0};
    setrlimit(RLIMIT_NOFILE, &none);
    return runs_code_in_registered_memory(cuda);
}

}  // namespace
}  // namespace harm
