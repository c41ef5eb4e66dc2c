// What StrangePlayer has signals, threads and limits do.
//
// Thread rule: an Errand is shared by its thread and the one that starts it; handlers count for the process.
#pragma once

#include <pthread.h>
#include <setjmp.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <span>

namespace ringroad::test {

// ---- Signals

extern volatile sig_atomic_t ticks;
extern volatile sig_atomic_t ticks_to_jump;
extern thread_local sigjmp_buf outside_of_call;
extern const std::function<long()>* errand_of_handler;
extern long answer_of_handler;

void count_tick(int);
void jump_at_a_tick(int);
void run_errand_in_handler(int);

void handle(int signo, void (*handler)(int), int flags);
void tick_every(int microseconds);

// ---- Threads

enum class Ending { kReturns, kExits, kExitsByNumber };

struct Errand {
  std::function<long()> call;
  Ending ending = Ending::kReturns;
  std::atomic<pid_t> tid{0};
  long value = -1;
  pthread_t thread{};
};

void start(Errand& errand, bool smallest_stack);

// ---- Limits

struct Limit {
  const char* name;
  __rlimit_resource resource;
  rlim_t to;
};

// What a run takes one of for an operation.
std::span<const Limit> limits();

// The soft one, which can be raised again.
class Lowered {
 public:
  explicit Lowered(const Limit& limit);
  ~Lowered() { ::setrlimit(resource_, &before_); }
  Lowered(const Lowered&) = delete;
  Lowered& operator=(const Lowered&) = delete;

 private:
  __rlimit_resource resource_;
  rlimit before_{};
};

}  // namespace ringroad::test
