// Faults and their handlers: those of a call's memory are EFAULT and no signal, all others are the program's.
// The memory: hole_scenarios.cc.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csetjmp>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <thread>

#include "rsocket-core/base/system_call.h"
#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/arguments.h"
#include "tests/preload/scenarios/memory_hole.h"

namespace ringroad::test {
namespace {

void touch_the_hole() { *static_cast<volatile char*>(before_a_hole(0)) = 'x'; }

int heard = 0;
int inherited;  // a child's stream
siginfo_t last_info;
void* last_stack;
bool has_code;  // the handler was told which instruction it was
sigjmp_buf before_the_fault;

void hear(int) { ++heard; }
void leave(int) {
  ++heard;
  siglongjmp(before_the_fault, 1);
}
void look_and_leave(int, siginfo_t* info, void* context) {
  last_info = *info;
  last_stack = __builtin_frame_address(0);
#if defined(__x86_64__)
  has_code = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP] != 0;
#else
  has_code = context != nullptr;
#endif
  siglongjmp(before_the_fault, 1);
}

struct sigaction handled_by(void (*handler)(int), unsigned flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = static_cast<int>(flags);
  return action;
}
struct sigaction handled_by(void (*handler)(int, siginfo_t*, void*), unsigned flags) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = static_cast<int>(flags | SA_SIGINFO);
  return action;
}

const char* name_of(sighandler_t handler) {
  if (handler == SIG_DFL) return "the default";
  return handler == SIG_IGN ? "ignored" : handler == hear ? "own" : "else";
}

// What the program is told of its action.
void log_action(Actor& a, const char* what, const struct sigaction& action) {
  std::uint64_t mask;
  std::memcpy(&mask, &action.sa_mask, sizeof mask);
  a.log("%s: %s, flags %x, mask %llx, restorer %d", what, name_of(action.sa_handler),
        static_cast<unsigned>(action.sa_flags), static_cast<unsigned long long>(mask),
        action.sa_restorer != nullptr);
}

// How a child ends that calls `last`.
void end_of_child(Actor& a, const char* what, void (*last)()) {
  const pid_t child = ::fork();
  if (child == 0) {
    last();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  a.log("%s: %s %d", what, WIFSIGNALED(status) ? "killed by" : "exits",
        WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

// From now on the kernel asks the reader of this descriptor before each rt_sigaction(2) of this thread. -1:
// it cannot. By system calls that the library does not see: it leaves a program alone that filters its calls.
int ask_before_actions() {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigaction, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{static_cast<unsigned short>(std::size(code)), code};
  sys::raw(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1);
  return static_cast<int>(sys::raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
                                   reinterpret_cast<long>(&program)));
}

// A thread that installs a handler of SIGSEGV, and is held on its way into the kernel.
class HeldInstaller {
 public:
  explicit HeldInstaller(void (*handler)(int)) {
    installer_ = std::thread([this, handler] {
      asked_.store(ask_before_actions());
      const struct sigaction action = handled_by(handler, 0);
      ::sigaction(SIGSEGV, &action, nullptr);
    });
    keeper_ = std::thread([this] { keep(); });
    while (!is_held_.load()) std::this_thread::yield();
  }
  // The handler is installed then.
  void let_go() {
    may_go_.store(true);
    keeper_.join();
    installer_.join();
  }

 private:
  static constexpr int kUnknown = -2;

  void keep() {
    while (asked_.load() == kUnknown) std::this_thread::yield();
    seccomp_notif question{};
    const bool asks = asked_.load() >= 0 && ::ioctl(asked_.load(), SECCOMP_IOCTL_NOTIF_RECV, &question) == 0;
    is_held_.store(true);
    if (!asks) return;
    // A thread that waits for the installer cannot let it go.
    for (int i = 0; i < 300 && !may_go_.load(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    seccomp_notif_resp answer{};
    answer.id = question.id;
    answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    ::ioctl(asked_.load(), SECCOMP_IOCTL_NOTIF_SEND, &answer);
    ::close(asked_.load());
  }

  std::atomic<int> asked_{kUnknown};
  std::atomic<bool> is_held_{false};
  std::atomic<bool> may_go_{false};
  std::thread installer_;
  std::thread keeper_;
};

void become_a_shell() {
  ::execl("/bin/sh", "sh", "-c", "kill -SEGV $$; exit 3", nullptr);
  ::_exit(127);
}

constexpr unsigned kOnce = SA_RESETHAND;
constexpr unsigned kFlags[] = {0,
                               SA_RESTART,
                               SA_NODEFER,
                               SA_ONSTACK,
                               kOnce,
                               SA_SIGINFO,
                               SA_SIGINFO | SA_ONSTACK | SA_NODEFER | kOnce};

}  // namespace

SCENARIO(handlers_of_faults_hear_nothing_of_a_call, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "sixteen letters and some"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    for (const int signo : {SIGSEGV, SIGBUS}) {
      const struct sigaction jumps = handled_by(leave, 0);
      ::sigaction(signo, &jumps, nullptr);
    }
    if (sigsetjmp(before_the_fault, 1) == 0) a.result("recv", ::recv(fd, before_a_hole(8), 64, 0));
    if (sigsetjmp(before_the_fault, 1) == 0) a.result("send", ::send(fd, before_a_hole(8), 64, 0));
    a.log("heard %d", heard);
    if (sigsetjmp(before_the_fault, 1) == 0) touch_the_hole();
    a.log("heard %d", heard);
    for (const int signo : {SIGSEGV, SIGBUS}) ::signal(signo, SIG_DFL);
    a.recv(fd, 100);
    a.send(fd, "the call's locks are free");
  });
  a.client([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.recv(fd, 100);
  });
}

// The library installs its own when there is something to be managed.
SCENARIO(a_handler_is_installed_beside_the_first_stream, kStaysOnChannel) {
  std::unique_ptr<HeldInstaller> installer;
  if (a.is_server()) installer = std::make_unique<HeldInstaller>(leave);
  const int fd = a.stream();
  if (a.is_server()) installer->let_go();
  a.client([&] { a.send(fd, "sixteen letters and some"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    struct sigaction now {};
    ::sigaction(SIGSEGV, nullptr, &now);
    a.log("its own: %d", now.sa_handler == leave);
    if (sigsetjmp(before_the_fault, 1) == 0) a.result("recv", ::recv(fd, before_a_hole(8), 64, 0));
    if (sigsetjmp(before_the_fault, 1) == 0) touch_the_hole();
    a.log("heard %d", heard);
    ::signal(SIGSEGV, SIG_DFL);
    a.recv(fd, 100);
  });
}

SCENARIO(the_program_is_told_of_its_own_actions_for_faults, kStaysOnChannel) {
  const int fd = a.stream();
  a.server([&] {
    a.send(fd, "from here on there is a stream");
    for (const int signo : {SIGSEGV, SIGBUS}) {
      struct sigaction old {};
      ::sigaction(signo, nullptr, &old);
      log_action(a, "at first", old);
      for (const sighandler_t handler : {SIG_DFL, SIG_IGN, static_cast<sighandler_t>(hear)}) {
        for (const unsigned flags : kFlags) {
          struct sigaction own = handled_by(handler, flags);
          ::sigaddset(&own.sa_mask, SIGUSR1);
          a.result("sigaction", ::sigaction(signo, &own, &old));
          log_action(a, "before it", old);
          ::sigaction(signo, nullptr, &old);
          log_action(a, "now", old);
        }
      }
      const struct sigaction once = handled_by(hear, kOnce | SA_NODEFER);
      ::sigaction(signo, &once, nullptr);
      ::raise(signo);
      ::sigaction(signo, nullptr, &old);
      log_action(a, "behind it", old);
      a.log("signal: %s", name_of(::signal(signo, hear)));
      a.log("signal: %s", name_of(::signal(signo, SIG_IGN)));
      ::raise(signo);
      a.log("signal: %s", name_of(::sysv_signal(signo, hear)));
      ::sigaction(signo, nullptr, &old);
      log_action(a, "by sysv_signal", old);
      a.log("signal: %s", name_of(::signal(signo, SIG_DFL)));
      ::sigaction(signo, nullptr, &old);
      log_action(a, "at last", old);
    }
    a.log("heard %d", heard);
  });
  a.client([&] { a.recv(fd, 100); });
}

SCENARIO(faults_of_the_program_are_its_own, kComesBack) {
  const int fd = a.stream();
  a.server([&] {
    a.send(fd, "from here on there is a stream");
    end_of_child(a, "a fault", touch_the_hole);
    end_of_child(a, "a signal", [] { ::raise(SIGSEGV); });
    end_of_child(a, "another", [] { ::kill(::getpid(), SIGBUS); });
    end_of_child(a, "a fault that is ignored", [] {
      ::signal(SIGSEGV, SIG_IGN);
      touch_the_hole();
    });
    end_of_child(a, "a fault after a handler", [] {
      const struct sigaction once = handled_by(hear, kOnce);
      ::sigaction(SIGSEGV, &once, nullptr);
      touch_the_hole();
    });
    end_of_child(a, "a program after the default", become_a_shell);
    end_of_child(a, "a program after a handler", [] {
      ::signal(SIGSEGV, hear);
      become_a_shell();
    });
    end_of_child(a, "a program after it was ignored", [] {
      ::signal(SIGSEGV, SIG_IGN);
      become_a_shell();
    });
    const struct sigaction looks = handled_by(look_and_leave, 0);
    ::sigaction(SIGSEGV, &looks, nullptr);
    if (sigsetjmp(before_the_fault, 1) == 0) touch_the_hole();
    a.log("code %d, address %d, instruction %d", last_info.si_code, last_info.si_addr == before_a_hole(0),
          has_code);
    if (sigsetjmp(before_the_fault, 1) == 0) ::raise(SIGSEGV);
    a.log("code %d, sender %d", last_info.si_code, last_info.si_pid == ::getpid());
    ::signal(SIGSEGV, SIG_DFL);
  });
  a.client([&] {
    a.recv(fd, 100);
    a.send(fd, "and goes on");
  });
  a.server([&] { a.recv(fd, 100); });
}

SCENARIO(a_fault_signal_that_is_sent_ends_a_sleep, kStaysOnChannel) {
  const int fd = a.stream();
  for (const int signo : {SIGSEGV, SIGBUS}) {
    if (a.is_server()) {
      count_signal(signo, false);
      Thread sleeper(a, [&] { a.recv(fd, 10); });
      sleeper.wait_asleep();
      sleeper.signal(signo);
      sleeper.join();
      count_signal(signo, true);
      Thread again(a, [&] { a.recv(fd, 10); });
      again.wait_asleep();
      again.signal(signo);
      again.wait_asleep();
      a.sync();
      again.join();
      a.log("%d signals", signals_seen());
      ::signal(signo, SIG_DFL);
    } else {
      a.sync();
      a.send(fd, "ten bytes.");
    }
    a.sync();
  }
}

// As in a container.
SCENARIO(fault_signals_do_not_end_the_first_process, kComesBack) {
  const int fd = a.stream();
  a.server([&] {
    inherited = fd;
    a.send(fd, "from here on there is a stream");
    end_of_child(a, "the namespace's maker", [] {
      if (::unshare(::geteuid() == 0 ? CLONE_NEWPID : CLONE_NEWUSER | CLONE_NEWPID) != 0) ::_exit(77);
      const pid_t first = ::fork();
      if (first == 0) {
        for (const int signo : {SIGSEGV, SIGBUS}) ::raise(signo);
        auto* const entry = reinterpret_cast<pollfd*>(before_a_hole(sizeof(pollfd)));
        *entry = {inherited, POLLOUT, 0};
        ::_exit(::poll(entry, 2, 0) < 0 && errno == EFAULT ? 3 : 4);
      }
      int status = 0;
      ::waitpid(first, &status, 0);
      ::_exit(WIFSIGNALED(status) ? WTERMSIG(status) : 100 + WEXITSTATUS(status));
    });
  });
  a.client([&] { a.recv(fd, 100); });
}

// The stack of a handler is the thread's, or the one that it has set aside.
SCENARIO(faults_in_threads_with_small_stacks, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "sixteen letters and some"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    struct Job {
      int fd;
      ssize_t result;
      int error;
      bool aside;
    } job{fd, 0, 0, false};
    const struct sigaction looks = handled_by(look_and_leave, SA_ONSTACK);
    ::sigaction(SIGSEGV, &looks, nullptr);
    pthread_attr_t small;
    ::pthread_attr_init(&small);
    ::pthread_attr_setstacksize(&small, static_cast<std::size_t>(PTHREAD_STACK_MIN) + 16 * 1024);
    pthread_t thread;
    const auto body = [](void* argument) -> void* {
      static char aside[64 * 1024];
      auto& own = *static_cast<Job*>(argument);
      own.result = ::recv(own.fd, before_a_hole(8), 64, 0);
      own.error = errno;
      stack_t stack{};
      stack.ss_sp = aside;
      stack.ss_size = sizeof aside;
      ::sigaltstack(&stack, nullptr);
      if (sigsetjmp(before_the_fault, 1) == 0) touch_the_hole();
      own.aside = last_stack >= aside && last_stack < aside + sizeof aside;
      return nullptr;
    };
    ::pthread_create(&thread, &small, body, &job);
    ::pthread_join(thread, nullptr);
    ::pthread_attr_destroy(&small);
    a.log("recv %zd, %s, aside %d", job.result, job.error == EFAULT ? "EFAULT" : "else", job.aside);
    ::signal(SIGSEGV, SIG_DFL);
    a.recv(fd, 100);
  });
}

}  // namespace ringroad::test
