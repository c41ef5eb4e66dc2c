// libc's own functions, behind the interposed names, and the declarations of ours.
//
// Our definitions carry C++ names of their own (rr_recv) and the interposed name as assembler name,
// so that libc's headers, which declare some of them noexcept or with attributes, do not clash.
#pragma once

#include <aio.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstdarg>
#include <cstdio>

namespace ringroad::preload {

struct Real {
#define RINGROAD_FUNCTION(ret, name, params) ret(*name) params = nullptr;
#define RINGROAD_ALIAS(ret, name, target, params, args)
#include "preload/functions.def"
#undef RINGROAD_FUNCTION
#undef RINGROAD_ALIAS
};

extern Real real_functions;
extern bool real_bound;
void bind_real() noexcept;

// Safe at any time: other libraries' constructors run before ours.
inline const Real& real() noexcept {
  if (__builtin_expect(!real_bound, 0)) bind_real();
  return real_functions;
}

}  // namespace ringroad::preload

#define RR_EXPORT __attribute__((visibility("default")))
#define RINGROAD_FUNCTION(ret, name, params) extern "C" RR_EXPORT ret rr_##name params asm(#name);
#define RINGROAD_ALIAS(ret, name, target, params, args) RINGROAD_FUNCTION(ret, name, params)
#include "preload/functions.def"
#undef RINGROAD_FUNCTION
#undef RINGROAD_ALIAS
