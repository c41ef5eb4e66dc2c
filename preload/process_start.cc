#include "preload/process_start.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "preload/agent_host.h"
#include "preload/cancellation.h"
#include "preload/epolls.h"
#include "preload/fault_handler.h"
#include "preload/fd_room.h"
#include "preload/fd_table.h"
#include "preload/fork_exec.h"
#include "preload/jumps.h"
#include "preload/log.h"
#include "preload/policy_loading.h"
#include "preload/process_facts.h"
#include "preload/process_state.h"
#include "preload/process_stats.h"
#include "preload/socket_lifecycle.h"
#include "preload/text.h"
#include "rsocket-core/base/mutex.h"
#include "rsocket-core/base/signals.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload::process_start {
namespace {

struct Environment {
  char policy[4096] = {};
  char log[1024] = {};
  char log_level[16] = {};
  char directory[4096] = {};
  char rendezvous[128] = {};  // more than the name of a Unix socket takes
  char labels[4096] = {};
  bool disabled = false;
};

Environment environment;
char program[64] = "unknown";  // the executable file's base name
char called[64] = "";          // argv[0]'s
Mutex start_mutex RR_RANK(start);
std::atomic<bool> started{false};
std::atomic<bool> handlers_registered{false};
thread_local bool fork_holds_start = false;  // the lock of the start, over the fork

void find_program_name() noexcept {
  char path[4096];
  const long n = sys::call(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", path, sizeof path - 1);
  if (n <= 0) return;
  path[n] = '\0';
  copy_text(program, sizeof program, base_name(path));
}

bool is_managed(int fd) noexcept { return fd_table::managed(fd); }

// The mode that an operator has set before an exec stays.
control::Mode first_mode() noexcept {
  const stats::Segment* const own = process_stats::own_segment();
  return own == nullptr ? control::Mode::kAuto : static_cast<control::Mode>(own->mode_before_exec());
}

// At the start, not when the library is loaded: handlers that come later run earlier before a fork, and an
// allocator of the program's that registers its own must not be locked yet when ours run.
// Without the lock of the start: up to glibc 2.35 this waits for the end of a fork, whose handlers want it.
// So two threads may both register, and a child whose parent was about to registers again: a handler that
// runs twice for a fork does nothing the second time.
void register_fork_handlers() noexcept {
  if (handlers_registered.load(std::memory_order_acquire)) return;
  pthread_atfork(fork_exec::before_fork, fork_exec::after_fork_parent, fork_exec::after_fork_child);
  handlers_registered.store(true, std::memory_order_release);
}

void start() noexcept {
  find_program_name();
  process_facts::set_names(program, called);
  process_facts::set_labels(environment.labels);
  if (environment.rendezvous[0] != '\0') process_state::set_rendezvous_directory(environment.rendezvous);
  process_stats::set_up(environment.directory, program);
  process_state::watch_for_copies();
  process_state::claim_memory();
  log::start(environment.log, environment.log_level, program, is_managed);
  try {
    if (policy_loading::load(environment.policy) != policy_loading::Loaded::kLetsOff) return;
    fd_table::set_end_of_stale_entries(socket_lifecycle::take_out_closed);
    const control::Mode mode = first_mode();
    set_sleep({cancellation::ppoll, cancellation::held_ppoll, cancellation::futex_wait,
               cancellation::held_futex_wait});
    process_state::set_agent(new Agent(agent_host, mode));
    fd_room::ask_again();
  } catch (...) {
    log::write(log::Level::kError, "out of memory: every connection stays on TCP");
  }
}

// A fork that comes while another thread starts the library waits for the end of that, for a while only:
// the other thread may want a lock that an allocator has taken for this very fork, or this thread may
// be in a handler that has interrupted the start.
void wait_for_start() noexcept RR_NO_THREAD_SAFETY_ANALYSIS {
  constexpr int kNaps = 1000;
  const timespec nap{0, 1'000'000};
  const int saved = errno;
  for (int i = 0; i < kNaps && !started.load(std::memory_order_acquire); ++i) {
    fork_holds_start = start_mutex.try_lock();
    if (fork_holds_start) break;
    sys::call(SYS_nanosleep, &nap, nullptr);
  }
  fork_exec::before_fork();  // the start has ended only now, or it has run already
  errno = saved;
}

void let_others_start() noexcept RR_NO_THREAD_SAFETY_ANALYSIS {
  if (std::exchange(fork_holds_start, false)) start_mutex.unlock();
  fork_exec::after_fork_parent();
}

// Where the fork has not waited long enough the child has nobody to end the start: it starts anew.
void forget_half_a_start() noexcept {
  const bool held = std::exchange(fork_holds_start, false);
  fault_handler::after_fork_child();
  if (fork_exec::is_prepared()) return fork_exec::after_fork_child();
  signals::forget_after_fork();
  jumps::after_fork_child();
  start_mutex.reset_after_fork();
  const bool half_done = process_state::existing_agent() != nullptr || (!held && !started.load());
  if (!half_done) return;
  started.store(false);
  process_stats::after_fork_child();
  process_state::set_agent(nullptr);
}

}  // namespace

void watch_forks() noexcept { pthread_atfork(wait_for_start, let_others_start, forget_half_a_start); }

void capture(const char* argv0) noexcept {
  if (argv0 != nullptr) copy_text(called, sizeof called, base_name(argv0));
  const char* disable = std::getenv("RINGROAD_DISABLE");
  environment.disabled = disable != nullptr && *disable != '\0' && std::strcmp(disable, "0") != 0;
  copy_text(environment.policy, sizeof environment.policy, std::getenv("RINGROAD_POLICY"));
  copy_text(environment.log, sizeof environment.log, std::getenv("RINGROAD_LOG"));
  copy_text(environment.log_level, sizeof environment.log_level, std::getenv("RINGROAD_LOG_LEVEL"));
  copy_text(environment.labels, sizeof environment.labels, std::getenv("RINGROAD_LABELS"));
  const char* directory = std::getenv("RINGROAD_RUNTIME_DIR");
  copy_text(environment.directory, sizeof environment.directory,
            directory == nullptr || *directory == '\0' ? stats::kDefaultDirectory : directory);
  copy_text(environment.rendezvous, sizeof environment.rendezvous, std::getenv("RINGROAD_RENDEZVOUS_DIR"));
}

Agent* agent() noexcept {
  if (environment.disabled) return nullptr;
  if (!started.load(std::memory_order_acquire)) {
    if (signals::thread_state.in_handler) return nullptr;  // the next call outside of one starts
    const int saved = errno;
    register_fork_handlers();
    MutexLock lock(start_mutex);
    if (!started.load(std::memory_order_relaxed)) {
      start();
      started.store(true, std::memory_order_release);
    }
    errno = saved;
  }
  return process_state::existing_agent();
}

}  // namespace ringroad::preload::process_start
