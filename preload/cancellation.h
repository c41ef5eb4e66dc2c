// Cancellation of threads, pthreads(7): calls on streams are cancellation points where libc's are.
//
// A call sleeps in libc's own ppoll(2) or epoll_pwait(2), which know how to end a sleep without missing
// what came just before it. The stack must not be unwound through the library's frames, though: its
// personality routine and unwinder are linked statically, libc uses libgcc_s.so's, and the two do not know
// each other's data. So the unwinding is caught where it begins (caught()), all the frames in between
// return as after an error, ECANCELED, and the outermost wrapper, which holds nothing, lets it go on
// (point()). The same holds for pthread_exit(3) in a handler of a signal, wherever the library lets one
// run or sleeps: also in a call that is no cancellation point.
//
// What else is here: requests that are pending when a call begins, calls that are no cancellation points,
// and threads that can be cancelled anywhere (PTHREAD_CANCEL_ASYNCHRONOUS), which must not be while
// they are in the library. Until somebody in the process has asked for any of that it costs one load.
//
// A jump out of a handler, siglongjmp(3) and its like, goes the same way (wrap_jump.cc): it is caught where
// the handler has interrupted the library, and the outermost wrapper makes it. So a jump leaves nothing of
// the library's behind.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "preload/real.h"
#include "rsocket-core/base/hints.h"
#include "rsocket-core/base/signals.h"

#define RR_NOINLINE __attribute__((noinline))

// What pthread_cleanup_push(3) is made of in C, now and of old (two stores).
extern "C" {
int rr_sigsetjmp(void* buffer, int with_mask) asm("__sigsetjmp") __attribute__((returns_twice));
void rr_cleanup_push(_pthread_cleanup_buffer* buffer, void (*routine)(void*),
                     void* arg) asm("_pthread_cleanup_push");
void rr_cleanup_pop(_pthread_cleanup_buffer* buffer, int execute) asm("_pthread_cleanup_pop");
void rr_register_cancel(__pthread_unwind_buf_t* buffer) asm("__pthread_register_cancel");
void rr_unregister_cancel(__pthread_unwind_buf_t* buffer) asm("__pthread_unregister_cancel");
}

namespace ringroad::preload::cancellation {

extern std::atomic<bool> in_use RR_HIDDEN;
// This thread ends, or jumps, and has to leave the library first.
extern constinit thread_local bool ends __attribute__((tls_model("initial-exec")));
// It is in one of the calls below, but not in libc's (caught()). A handler that ends the thread here is
// caught by what wraps it (wrap_signal.cc).
extern constinit thread_local bool inside __attribute__((tls_model("initial-exec")));

// A call that catches what would leave it: a stack's unwinding, or a jump.
struct Pad {
  __pthread_unwind_buf_t here;  // first: siglongjmp(3) takes it for a sigjmp_buf
  Pad* outer;                   // of this thread: the one around this
  const Pad* live;              // itself, as long as the call is under way
  bool was_inside;
};
// The innermost of this thread.
extern constinit thread_local Pad* pads __attribute__((tls_model("initial-exec")));
// What sigsetjmp(3) returns at a pad where a jump has landed.
constexpr int kJumped = 2;

// A call begins that is not the library's, and has returned.
[[gnu::always_inline]] inline void leave_library(Pad& pad) noexcept {
  pad.was_inside = inside;
  pad.outer = pads;
  pad.live = &pad;
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  pads = &pad;
  inside = false;
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
[[gnu::always_inline]] inline void enter_library(Pad& pad) noexcept {
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  inside = pad.was_inside;
  pads = pad.outer;
  pad.live = nullptr;
  keep_in_memory(pad.live);
}
// The thread ends or jumps: `pad` has caught it. `how`: what sigsetjmp(3) has returned.
void land(Pad& pad, int how) noexcept;
// Lets it go on. `type`: the thread's cancellation type, to be restored before a jump.
void go_on(int type = PTHREAD_CANCEL_DEFERRED);

// For a call of libc's whose frames have nothing for an unwinder to do: what is to be done where it
// does not return. Outside of the calls below.
inline void push_cleanup(_pthread_cleanup_buffer* buffer, void (*routine)(void*),
                         void* arg) noexcept {
  rr_cleanup_push(buffer, routine, arg);
}
inline void pop_cleanup(_pthread_cleanup_buffer* buffer, int execute) noexcept {
  rr_cleanup_pop(buffer, execute);
}

// A call that the thread may be ended in, or jump out of, though the library's frames are around it. -1 and
// ECANCELED if so: the caller returns at once, giving back what it holds. `always`: it is made also if the
// thread ends or jumps already. A handler that runs before the check has said so by then; one that runs
// after it lands here, so none is missed before a sleep.
template <bool always, typename Result, typename... Params, typename... Args>
RR_NOINLINE Result caught_call(Result (*call)(Params...), Args... args) {
  Pad pad;
  if (const int how = rr_sigsetjmp(pad.here.__cancel_jmp_buf, 0); __builtin_expect(how != 0, 0)) {
    land(pad, how);
    errno = ECANCELED;
    return -1;
  }
  rr_register_cancel(&pad.here);
  leave_library(pad);
  if (!always && hardly_ever(ends)) {
    enter_library(pad);
    rr_unregister_cancel(&pad.here);
    errno = ECANCELED;
    return -1;
  }
  const Result result = call(args...);
  enter_library(pad);
  rr_unregister_cancel(&pad.here);
  return result;
}

// The same of a call of libc's that is a cancellation point.
template <typename Result, typename... Params, typename... Args>
inline Result caught(Result (*call)(Params...), Args... args) {
  return caught_call<false>(call, args...);
}

// What the library sleeps in.
int held_ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask);
int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask);
// As sys::futex_wait().
int held_futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t value, const timespec* timeout);
int futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t value, const timespec* timeout);
// The same, where RLIMIT_NOFILE is to hold for `asked` entries, the program's own.
int ppoll_for(nfds_t asked, pollfd* fds, nfds_t count, const timespec* timeout,
              const sigset_t* mask);
int epoll_pwait(int epfd, epoll_event* events, int max, int timeout_ms, const sigset_t* mask);
int epoll_pwait2(int epfd, epoll_event* events, int max, const timespec* timeout,
                 const sigset_t* mask);

// A call that is a cancellation point. It is not inlined: a frame with destructors must not be there while
// the thread can be cancelled anywhere. The arguments stay in their registers.
template <auto call, typename... Args>
RR_NOINLINE auto begin_and_call(Args... args) {
  int type = PTHREAD_CANCEL_DEFERRED;
  real().pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
  pthread_testcancel();
  inside = true;
  const auto result = call(args...);
  inside = false;
  if (ends) go_on(type);
  if (type != PTHREAD_CANCEL_DEFERRED) real().pthread_setcanceltype(type, nullptr);
  return result;
}
template <auto call, typename... Args>
inline auto point(Args... args) {
  if (__builtin_expect(in_use.load(std::memory_order_relaxed), 0)) {
    return begin_and_call<call>(args...);
  }
  inside = true;
  const auto result = call(args...);
  inside = false;
  if (__builtin_expect(ends, 0)) go_on();
  return result;
}

// Of a thread that can be cancelled anywhere, or may have a request pending.
inline bool may_be_cancelled() noexcept {
  return __builtin_expect(in_use.load(std::memory_order_relaxed), 0);
}

// A call that takes a few instructions, of a thread that nobody cancels: no handler runs in it, so none
// ends the thread there. Those that were put off run where they may.
[[gnu::cold]] void deliver_signals();
template <auto call, typename... Args>
[[gnu::always_inline]] inline auto brief(Args... args) {
  // Else the frame would know what to do when it is unwound.
  static_assert(noexcept(call(args...)));
  signals::begin();
  const auto result = call(args...);
  if (hardly_ever(signals::end_without_delivery())) deliver_signals();
  return result;
}

// A call that is none, but for a thread that can be cancelled anywhere.
template <auto call, typename... Args>
RR_NOINLINE auto put_off_and_call(Args... args) {
  int type = PTHREAD_CANCEL_DEFERRED;
  int state = PTHREAD_CANCEL_DISABLE;
  real().pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
  if (type != PTHREAD_CANCEL_DEFERRED) {
    pthread_testcancel();
  } else {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  }
  inside = true;
  const auto result = call(args...);
  inside = false;
  if (state != PTHREAD_CANCEL_DISABLE) pthread_setcancelstate(state, nullptr);
  if (ends) go_on(type);
  if (type != PTHREAD_CANCEL_DEFERRED) real().pthread_setcanceltype(type, nullptr);
  return result;
}
template <auto call, typename... Args>
inline auto no_point(Args... args) {
  if (__builtin_expect(in_use.load(std::memory_order_relaxed), 0)) {
    return put_off_and_call<call>(args...);
  }
  inside = true;
  const auto result = call(args...);
  inside = false;
  if (__builtin_expect(ends, 0)) go_on();
  return result;
}

}  // namespace ringroad::preload::cancellation
