#include "tests/preload/programs/random_tools.h"

#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

namespace ringroad::test {

volatile sig_atomic_t ticks = 0;
volatile sig_atomic_t ticks_to_jump = 0;
thread_local sigjmp_buf outside_of_call;
const std::function<long()>* errand_of_handler = nullptr;
long answer_of_handler = 0;

void count_tick(int) { ticks = ticks + 1; }

void jump_at_a_tick(int) {
  ticks = ticks + 1;
  if (ticks == ticks_to_jump) siglongjmp(outside_of_call, 1);
}

void run_errand_in_handler(int) { answer_of_handler = (*errand_of_handler)(); }

void handle(int signo, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  ::sigaction(signo, &action, nullptr);
}

void tick_every(int microseconds) {
  const itimerval timer{{0, microseconds}, {0, microseconds}};
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

namespace {

void* run_errand(void* data) {
  auto* errand = static_cast<Errand*>(data);
  errand->tid.store(::gettid());
  errand->value = errand->call();
  if (errand->ending == Ending::kExits) ::pthread_exit(nullptr);
  if (errand->ending == Ending::kExitsByNumber) ::syscall(SYS_exit, 0);
  return nullptr;
}

constexpr rlim_t kInUse = RLIM_INFINITY;  // and as little more as a call of ours itself may take
constexpr rlim_t kLittle = 1 << 20;
constexpr Limit kLimits[] = {
    {"AS", RLIMIT_AS, kInUse},
    {"DATA", RLIMIT_DATA, kInUse},
    {"STACK", RLIMIT_STACK, 64 * 1024},
    {"MEMLOCK", RLIMIT_MEMLOCK, 0},
    {"NPROC", RLIMIT_NPROC, 0},
    {"FSIZE", RLIMIT_FSIZE, 0},
    {"SIGPENDING", RLIMIT_SIGPENDING, 0},
    {"NOFILE of 0", RLIMIT_NOFILE, 0},
    {"NOFILE of 1", RLIMIT_NOFILE, 1},
    {"NOFILE of 5", RLIMIT_NOFILE, 5},
    {"NOFILE of 12", RLIMIT_NOFILE, 12},
    {"NOFILE of 64", RLIMIT_NOFILE, 64},
};

rlim_t in_use(const char* what) {
  long kib = 0;
  if (std::FILE* file = std::fopen("/proc/self/status", "re")) {
    char line[128];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      if (std::strncmp(line, what, std::strlen(what)) == 0) std::sscanf(line, "%*s %ld", &kib);
    }
    std::fclose(file);
  }
  return static_cast<rlim_t>(kib) * 1024;
}

}  // namespace

void start(Errand& errand, bool smallest_stack) {
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  if (smallest_stack) {
    ::pthread_attr_setstacksize(&attributes, static_cast<std::size_t>(::sysconf(_SC_THREAD_STACK_MIN)));
  }
  if (::pthread_create(&errand.thread, &attributes, run_errand, &errand) != 0) ::_exit(4);
  ::pthread_attr_destroy(&attributes);
}

std::span<const Limit> limits() { return kLimits; }

Lowered::Lowered(const Limit& limit) : resource_(limit.resource) {
  const rlim_t to =
      limit.to == kInUse ? in_use(resource_ == RLIMIT_AS ? "VmSize:" : "VmData:") + kLittle : limit.to;
  ::getrlimit(resource_, &before_);
  const rlimit now{to, before_.rlim_max};
  ::setrlimit(resource_, &now);
}

}  // namespace ringroad::test
