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
#pragma once

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "preload/real.h"
#include "rsocket-core/hints.h"
#include "rsocket-core/signals.h"

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
// This thread ends, and has to leave the library first.
extern constinit thread_local bool ends __attribute__((tls_model("initial-exec")));
// It is in one of the calls below, but not in libc's (caught()). A handler that ends the thread here is
// caught by what wraps it (wrap_signal.cc).
extern constinit thread_local bool inside __attribute__((tls_model("initial-exec")));

// The thread ends: `here` has caught it.
void keep(__pthread_unwind_buf_t& here) noexcept;
// Lets it go on.
void go_on();

// For a call of libc's whose frames have nothing for an unwinder to do: what is to be done where it
// does not return. Outside of the calls below.
inline void push_cleanup(_pthread_cleanup_buffer* buffer, void (*routine)(void*),
                         void* arg) noexcept {
  rr_cleanup_push(buffer, routine, arg);
}
inline void pop_cleanup(_pthread_cleanup_buffer* buffer, int execute) noexcept {
  rr_cleanup_pop(buffer, execute);
}

// A call of libc's that is a cancellation point, made where the library's frames are around it. -1 and
// ECANCELED if the thread is ended in it: the caller returns at once, giving back what it holds.
template <typename Result, typename... Params, typename... Args>
RR_NOINLINE Result caught(Result (*call)(Params...), Args... args) {
  __pthread_unwind_buf_t here;
  if (__builtin_expect(rr_sigsetjmp(here.__cancel_jmp_buf, 0) != 0, 0)) {
    keep(here);
    errno = ECANCELED;
    return -1;
  }
  rr_register_cancel(&here);
  const bool was_inside = inside;
  inside = false;
  const Result result = call(args...);
  inside = was_inside;
  rr_unregister_cancel(&here);
  return result;
}

// What the library sleeps in.
int held_ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask);
int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask);
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
  if (ends) go_on();
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
  if (ends) go_on();
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
