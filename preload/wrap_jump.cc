// siglongjmp and its like (jumps.h).
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <utility>

#include <ucontext.h>

#include "preload/cancellation.h"
#include "preload/jumps.h"
#include "preload/real.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload::jumps {
namespace {

using cancellation::Pad;
using Address = std::uintptr_t;
using Jump = void (*)(__jmp_buf_tag*, int);

struct Target {
  Jump jump = nullptr;  // of libc's; null: setcontext(3)
  __jmp_buf_tag* buffer = nullptr;
  int value = 0;
  const ucontext_t* context = nullptr;
};

constinit thread_local Target pending __attribute__((tls_model("initial-exec"))){};
constinit thread_local HandlerFrame* frames __attribute__((tls_model("initial-exec"))) = nullptr;
// The innermost when this process was forked: what it has become is no handler any more.
constinit thread_local const HandlerFrame* forked_in __attribute__((tls_model("initial-exec"))) = nullptr;

// Another handler's frame may come to lie where that one lay.
void pop() noexcept {
  if (frames == forked_in) forked_in = nullptr;
  frames = frames->outer;
}
void set_in_handler() noexcept {
  signals::thread_state.in_handler = frames != nullptr && frames != forked_in;
}

// The stack pointer at which a jump goes on. libc keeps it mangled.
#if defined(__x86_64__)
constexpr int kStackInBuffer = 6;
Address unmangled(Address kept) noexcept {
  asm("ror $17, %0\n\txor %%fs:0x30, %0" : "+r"(kept) : : "cc");
  return kept;
}
Address stack_of(const ucontext_t& context) noexcept {
  return static_cast<Address>(context.uc_mcontext.gregs[REG_RSP]);
}
#elif defined(__aarch64__)
constexpr int kStackInBuffer = 13;
// By exclusive or with a secret, which a look at a known one tells.
RR_NOINLINE Address unmangled(Address kept) noexcept {
  __jmp_buf_tag known;
  Address stack;
  asm volatile("mov %0, sp" : "=r"(stack));
  rr_sigsetjmp(&known, 0);
  return kept ^ static_cast<Address>(known.__jmpbuf[kStackInBuffer]) ^ stack;
}
Address stack_of(const ucontext_t& context) noexcept { return context.uc_mcontext.sp; }
#else
#error "where libc's jmp_buf has the stack pointer is not known"
#endif

Address stack_of(const __jmp_buf_tag* buffer) noexcept {
  return unmangled(static_cast<Address>(buffer->__jmpbuf[kStackInBuffer]));
}

// The alternate stack of signals, if the thread is on it.
class AlternateStack {
 public:
  AlternateStack() noexcept {
    stack_t stack{};
    if (sys::raw(SYS_sigaltstack, 0, sys::word(&stack)) != 0) return;
    if ((stack.ss_flags & SS_ONSTACK) == 0) return;
    begin_ = reinterpret_cast<Address>(stack.ss_sp);
    size_ = stack.ss_size;
  }
  bool has(Address address) const noexcept { return address - begin_ < size_; }

 private:
  Address begin_ = 0;
  Address size_ = 0;
};

// Whether `target` is between the stack pointer, `here`, and what is at `outer`.
bool is_within(Address target, Address here, Address outer, const AlternateStack& alternate) noexcept {
  if (alternate.has(here) && !alternate.has(outer)) {
    return alternate.has(target) ? target >= here : target < outer;
  }
  return target >= here && target < outer;
}

// The call that a jump to `target` would leave. Null: none.
Pad* nearest_left(Address target, Address here, const AlternateStack& alternate) noexcept {
  for (Pad* pad = cancellation::pads; pad != nullptr && pad->live == pad; pad = pad->outer) {
    const auto at = reinterpret_cast<Address>(pad);
    const bool gone = at < here && alternate.has(at) == alternate.has(here);
    if (!gone) return is_within(target, here, at, alternate) ? nullptr : pad;
  }
  return nullptr;
}

// The handlers between here and `outer` do not return.
void leave_handlers(Address outer, Address here, const AlternateStack& alternate, bool to_pad) noexcept {
  for (; frames != nullptr; pop(), set_in_handler()) {
    if (!is_within(reinterpret_cast<Address>(frames), here, outer, alternate)) return;
    // A call with a pad returns, and says itself that it waits no more.
    const HandlerFrame* const around = frames->outer;
    unmanaged_waiters::go_back_to(to_pad              ? frames->waits
                        : around != nullptr ? around->waits
                                            : unmanaged_waiters::Waits{});
  }
}

[[noreturn]] void jump_at_once(const Target& target) {
  if (target.jump != nullptr) target.jump(target.buffer, target.value);
  real().setcontext(target.context);
  __builtin_unreachable();
}

// Of a thread that is in a call of the library's, or in a handler.
[[gnu::cold, noreturn]] RR_NOINLINE void jump_from_call(const Target& target, Address stack) {
  const auto here = reinterpret_cast<Address>(__builtin_frame_address(0));
  const AlternateStack alternate;
  Pad* const pad = nearest_left(stack, here, alternate);
  if (pad == nullptr) {
    leave_handlers(stack, here, alternate, false);
    jump_at_once(target);
  }
  leave_handlers(reinterpret_cast<Address>(pad), here, alternate, true);
  // A thread that libc ends already ends.
  if (!cancellation::ends || is_pending()) pending = target;
  real().siglongjmp(reinterpret_cast<__jmp_buf_tag*>(&pad->here), cancellation::kJumped);
  __builtin_unreachable();
}

inline bool leaves_nothing() noexcept { return cancellation::pads == nullptr && frames == nullptr; }

template <Jump Real::*function>
[[noreturn]] void jump(__jmp_buf_tag* buffer, int value) {
  const Target target{real().*function, buffer, value, nullptr};
  if (__builtin_expect(!leaves_nothing(), 0)) jump_from_call(target, stack_of(buffer));
  jump_at_once(target);
}

}  // namespace

bool is_pending() noexcept { return pending.buffer != nullptr || pending.context != nullptr; }
void forget() noexcept { pending = {}; }

void make() {
  const Target target = std::exchange(pending, {});
  const Address stack =
      target.buffer != nullptr ? stack_of(target.buffer) : stack_of(*target.context);
  jump_from_call(target, stack);
}

void keep_mask(void* context) noexcept {
  sys::raw(SYS_rt_sigprocmask, SIG_SETMASK, 0,
           sys::word(&static_cast<ucontext_t*>(context)->uc_sigmask), _NSIG / 8);
}

void after_fork_child() noexcept {
  forked_in = frames;
  set_in_handler();
}

void HandlerFrame::begin() noexcept {
  outer = frames;
  waits = unmanaged_waiters::waits_of_thread();
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  frames = this;
  signals::thread_state.in_handler = true;
}
void HandlerFrame::end() noexcept {
  pop();
  set_in_handler();
}

}  // namespace ringroad::preload::jumps

using namespace ringroad::preload;

void rr_longjmp(__jmp_buf_tag* buffer, int value) { jumps::jump<&Real::longjmp>(buffer, value); }
void rr__longjmp(__jmp_buf_tag* buffer, int value) { jumps::jump<&Real::_longjmp>(buffer, value); }
void rr_siglongjmp(__jmp_buf_tag* buffer, int value) {
  jumps::jump<&Real::siglongjmp>(buffer, value);
}
void rr___longjmp_chk(__jmp_buf_tag* buffer, int value) {
  jumps::jump<&Real::__longjmp_chk>(buffer, value);
}

int rr_setcontext(const ucontext_t* context) {
  if (jumps::leaves_nothing() || context == nullptr) return real().setcontext(context);
  jumps::jump_from_call({nullptr, nullptr, 0, context}, jumps::stack_of(*context));
}
