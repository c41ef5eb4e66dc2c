// Stretches of the library that no signal handler of the program's may interrupt.
//
// The program's handlers may call whatever signal-safety(7) allows, send(2) and recv(2) on a stream
// and _exit(2) among it, while the very thread is inside the library with a lock. Blocking signals
// around each stretch would cost two system calls. Instead the handlers that the program installs
// are wrapped (preload/wrap_signal.cc): one that would run inside a stretch is put off to its end,
// as if the signal had come a moment later. Handlers of faults are not wrapped, as those cannot
// wait.
//
// Thread rule: everything here concerns the calling thread alone.
#pragma once

#include <atomic>
#include <csignal>
#include <cstdint>

#include "rsocket-core/base/hints.h"

namespace ringroad::signals {

// Bits: what SA_RESTART says of handlers that ran.
constexpr unsigned kNone = 0;
constexpr unsigned kRestarting = 1;
constexpr unsigned kInterrupting = 2;

struct ThreadState {
  unsigned depth = 0;         // stretches around this point
  unsigned ran = kNone;       // what the wrapped handlers were; a sleep clears it when it begins
  // Signals that are blocked until depth is 0; bit 0 is signal 1. That of SIGKILL, which cannot be: what is
  // to be done then is not only for the kernel.
  std::uint64_t put_off = 0;
  // In a wrapped handler, which may have interrupted anything: no thread is made here, and nothing else that
  // takes libc's memory.
  bool in_handler = false;
};

inline thread_local constinit ThreadState thread_state __attribute__((tls_model("initial-exec")));

// If depth is 0: the kernel has them delivered before this returns. Keeps errno.
[[gnu::cold]] void deliver() noexcept;

// A handler can see the thread between any two instructions, but nobody else can.
inline void begin() noexcept {
  ++thread_state.depth;
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
// True: deliver() is to follow.
inline bool end_without_delivery() noexcept {
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  --thread_state.depth;
  return hardly_ever(thread_state.put_off != 0);
}
inline void end() noexcept {
  if (end_without_delivery()) deliver();
}

class DeferHandlers {
 public:
  DeferHandlers() noexcept { begin(); }
  ~DeferHandlers() { end(); }
  DeferHandlers(const DeferHandlers&) = delete;
  DeferHandlers& operator=(const DeferHandlers&) = delete;
};

// Inside a stretch, where the thread holds no lock and is about to sleep: handlers run here.
class RunHandlers {
 public:
  RunHandlers() noexcept : depth_(thread_state.depth) {
    thread_state.depth = 1;
    end();
  }
  ~RunHandlers() {
    thread_state.depth = depth_;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
  }
  RunHandlers(const RunHandlers&) = delete;
  RunHandlers& operator=(const RunHandlers&) = delete;

 private:
  const unsigned depth_;
};

// From here on came_since_begin() tells of handlers; a poll in place of a sleep ends as that
// would.
inline void begin_wait() noexcept { thread_state.ran = kNone; }
// Whether one has run, or would have but for the stretch that this is in.
inline bool came_since_begin() noexcept {
  return thread_state.ran != kNone || thread_state.put_off != 0;
}

// The signals, 1 << (number - 1), whose handlers run unseen: for came_since_begin() they have not.
// While there is one, nobody polls.
inline std::atomic<std::uint64_t> handlers_unseen{0};

// For the wrapped handler. True: the signal was put off, and the handler is not to run. `context`
// is its third argument.
bool put_off(int signo, siginfo_t* info, void* context) noexcept;

// A handler ran inside a stretch, as it could not be put off: the end of the stretch looks.
inline void look_at_the_end() noexcept { thread_state.put_off |= std::uint64_t{1} << (SIGKILL - 1); }

// In the child of a fork, which is inside the stretches of its parent's locks.
void forget_after_fork() noexcept;

}  // namespace ringroad::signals
