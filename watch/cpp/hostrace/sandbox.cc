#include "hostrace/sandbox.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "hostrace/errno_kept.h"
#include "hostrace/faults.h"
#include "hostrace/machine.h"
#include "hostrace/raw_calls.h"
#include "hostrace/watcher.h"

namespace hostrace {
namespace {

std::atomic<bool> own_dispatch{false};

// What is called inside of the program's calls, or of its touches.
constexpr std::array<long, 16> kNeeded{
    SYS_mprotect, SYS_rt_sigprocmask, SYS_rt_sigaction, SYS_rt_sigreturn,    SYS_rt_tgsigqueueinfo, SYS_tgkill,
    SYS_gettid,   SYS_getpid,         SYS_prctl,        SYS_openat,          SYS_pread64,           SYS_close,
    SYS_write,    SYS_sched_yield,    SYS_futex,        SYS_clock_nanosleep,
};

// The kernel's own small machine, for one call: what the filter answers. As for the kernel, filters are small and end.
class Filter {
  public:
    explicit Filter(std::span<const sock_filter> code) : code_(code) {}

    std::uint32_t operator()(const seccomp_data& data) {
        for (std::size_t at = 0; at < code_.size(); ++at) {
            const sock_filter& one = code_[at];
            switch (BPF_CLASS(one.code)) {
                case BPF_RET:
                    return BPF_RVAL(one.code) == BPF_A ? a_ : one.k;
                case BPF_JMP:
                    at += BPF_OP(one.code) == BPF_JA ? one.k : jumps(one) ? one.jt : one.jf;
                    break;
                default:
                    step(one, data);
                    break;
            }
        }
        return SECCOMP_RET_KILL_PROCESS;
    }

  private:
    void step(const sock_filter& one, const seccomp_data& data) {
        switch (BPF_CLASS(one.code)) {
            case BPF_LD:
                a_ = loaded(one, data);
                break;
            case BPF_LDX:
                x_ = loaded(one, data);
                break;
            case BPF_ST:
                memory_[one.k % BPF_MEMWORDS] = a_;
                break;
            case BPF_STX:
                memory_[one.k % BPF_MEMWORDS] = x_;
                break;
            case BPF_ALU:
                a_ = reckoned(one);
                break;
            default:
                BPF_MISCOP(one.code) == BPF_TAX ? x_ = a_ : a_ = x_;
                break;
        }
    }

    std::uint32_t loaded(const sock_filter& one, const seccomp_data& data) const {
        switch (BPF_MODE(one.code)) {
            case BPF_IMM:
                return one.k;
            case BPF_MEM:
                return memory_[one.k % BPF_MEMWORDS];
            case BPF_LEN:
                return sizeof data;
            default: {
                std::uint32_t word = 0;
                const std::size_t at = one.k % sizeof data & ~std::size_t{3};
                std::memcpy(&word, reinterpret_cast<const char*>(&data) + at, sizeof word);
                return word;
            }
        }
    }

    std::uint32_t other(const sock_filter& one) const { return BPF_SRC(one.code) == BPF_X ? x_ : one.k; }

    bool jumps(const sock_filter& one) const {
        switch (BPF_OP(one.code)) {
            case BPF_JEQ:
                return a_ == other(one);
            case BPF_JGT:
                return a_ > other(one);
            case BPF_JGE:
                return a_ >= other(one);
            default:
                return (a_ & other(one)) != 0;
        }
    }

    std::uint32_t reckoned(const sock_filter& one) const {
        const std::uint32_t by = other(one);
        switch (BPF_OP(one.code)) {
            case BPF_ADD:
                return a_ + by;
            case BPF_SUB:
                return a_ - by;
            case BPF_MUL:
                return a_ * by;
            case BPF_DIV:
                return by == 0 ? 0 : a_ / by;
            case BPF_OR:
                return a_ | by;
            case BPF_AND:
                return a_ & by;
            case BPF_XOR:
                return a_ ^ by;
            case BPF_LSH:
                return by > 31 ? 0 : a_ << by;
            case BPF_RSH:
                return by > 31 ? 0 : a_ >> by;
            default:
                return 0U - a_;
        }
    }

    std::span<const sock_filter> code_;
    std::uint32_t a_ = 0, x_ = 0;
    std::array<std::uint32_t, BPF_MEMWORDS> memory_{};
};

bool lets_us(const sock_fprog& program) {
    for (const long number : kNeeded) {
        seccomp_data data{};
        data.nr = static_cast<int>(number);
        data.arch = machine::kAudit;
        data.instruction_pointer = reinterpret_cast<std::uintptr_t>(&lets_us);
        if (number == SYS_mprotect) {
            data.args[2] = PROT_READ | PROT_WRITE;
        }
        const std::uint32_t answer = Filter({program.filter, program.len})(data) & SECCOMP_RET_ACTION_FULL;
        if (answer != SECCOMP_RET_ALLOW && answer != SECCOMP_RET_LOG) {
            return false;
        }
    }
    return true;
}

void close_in(bool filter, const void* given) {
    const auto* program = static_cast<const sock_fprog*>(given);
    if (!filter || (program != nullptr && program->filter != nullptr && !lets_us(*program))) {
        stop_watching(
            "the program has closed itself in (seccomp), and forbids calls into the kernel that hostrace needs: "
            "nothing is watched from then on");
        let_raw_calls_through();  // the handler that is told of them returns by a call
    }
}

void dispatch_to_itself() {
    stop_watching(
        "the program has its calls into the kernel handed to itself (system-call user dispatch): "
        "nothing is watched from then on");
    let_raw_calls_through();
    give_signals_back();
    own_dispatch.store(true, std::memory_order_release);
}

}  // namespace

bool has_its_own_dispatch() { return own_dispatch.load(std::memory_order_acquire); }

bool closes_in(long number, const std::array<long, 6>& arguments) {
    const ErrnoKept of_the_program;
    if (number == SYS_seccomp && (arguments[0] == SECCOMP_SET_MODE_STRICT || arguments[0] == SECCOMP_SET_MODE_FILTER)) {
        close_in(arguments[0] == SECCOMP_SET_MODE_FILTER, reinterpret_cast<const void*>(arguments[2]));
        return true;
    }
    if (number != SYS_prctl) {
        return false;
    }
    if (arguments[0] == PR_SET_SECCOMP) {
        close_in(arguments[1] == SECCOMP_MODE_FILTER, reinterpret_cast<const void*>(arguments[2]));
        return true;
    }
    if (arguments[0] == machine::kDispatch && arguments[1] == 1) {
        dispatch_to_itself();
        return true;
    }
    return false;
}

}  // namespace hostrace
