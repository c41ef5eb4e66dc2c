// libc's own functions, behind the interposed names, and the declarations of ours.
//
// Our definitions carry C++ names of their own (rr_recv) and the interposed name as assembler name,
// so that libc's headers, which declare some of them noexcept or with attributes, do not clash.
#pragma once

#include <aio.h>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <ucontext.h>

#include <cstdarg>
#include <cstdio>

#include "rsocket-core/base/hints.h"

namespace ringroad::preload {

// Binds real() to what comes after this library: binding.cc, as the functions that libc may lack call real().
void bind_real() noexcept;

// What stands for a function until it is bound: binds all of them, and calls it. None for those with
// arguments that cannot be passed on.
template <typename Function>
struct Unbound {
  template <auto function>
  static constexpr Function call = nullptr;
};
template <typename Result, typename... Params>
struct Unbound<Result (*)(Params...)> {
  template <auto function>
  static Result call(Params... params);
};

struct Real {
#define RINGROAD_FUNCTION(ret, name, params) \
  ret(*name) params = Unbound<ret(*) params>::template call<&Real::name>;
#define RINGROAD_ALIAS(ret, name, target, params, args)
#include "preload/functions.def"
#undef RINGROAD_FUNCTION
#undef RINGROAD_ALIAS
};

extern Real real_functions RR_HIDDEN;
extern bool real_bound RR_HIDDEN;

// Safe at any time: other libraries' constructors run before ours, and one that calls a function that is not
// bound yet binds it. Nothing is asked here.
inline const Real& real() noexcept { return real_functions; }
// False: no function but syscall() can have been called, so that there is no stream yet.
inline bool is_bound() noexcept { return __atomic_load_n(&real_bound, __ATOMIC_ACQUIRE); }
// For those that take whatever they are given (`...`).
inline const Real& bound_real() noexcept {
  if (__builtin_expect(!is_bound(), 0)) bind_real();
  return real_functions;
}

template <typename Result, typename... Params>
template <auto function>
Result Unbound<Result (*)(Params...)>::call(Params... params) {
  return (bound_real().*function)(params...);
}

}  // namespace ringroad::preload

#define RR_EXPORT __attribute__((visibility("default")))
#define RINGROAD_FUNCTION(ret, name, params) extern "C" RR_EXPORT ret rr_##name params asm(#name);
#define RINGROAD_ALIAS(ret, name, target, params, args) RINGROAD_FUNCTION(ret, name, params)
#include "preload/functions.def"
#undef RINGROAD_FUNCTION
#undef RINGROAD_ALIAS
