// Which of the threads that wait are woken by one arrival: no more than by the kernel.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <utility>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/epoll_calls.h"

namespace ringroad::test {
namespace {

constexpr int kThreads = 4;
constexpr std::uint64_t kStop = 99;

// How often a thread of this process has gone to sleep by itself.
long sleeps_of(pid_t tid) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/status", static_cast<int>(tid));
  long count = -1;
  if (std::FILE* file = std::fopen(path, "re")) {
    char line[128];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      if (std::sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1) break;
    }
    std::fclose(file);
  }
  return count;
}

// Whether a thread of this process is in a call that waits for descriptors, or reads. On a busy host it may
// sleep for long before that, say for memory or for a lock.
bool is_in_its_wait(pid_t tid) {
  constexpr long kCalls[] = {
#if defined(SYS_epoll_wait)
      SYS_epoll_wait, SYS_poll,
#endif
      SYS_epoll_pwait, SYS_ppoll, SYS_read};
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/syscall", static_cast<int>(tid));
  long number = -1;
  if (std::FILE* file = std::fopen(path, "re")) {
    if (std::fscanf(file, "%ld", &number) != 1) number = -1;  // it runs
    std::fclose(file);
  }
  return std::find(std::begin(kCalls), std::end(kCalls), number) != std::end(kCalls);
}

// Threads that each wait once, for ever, in an instance that also holds an eventfd of this
// object's.
class Waiters {
 public:
  explicit Waiters(Actor& a) : a_(a) {}
  ~Waiters() {
    ::close(stop_);
    ::close(leave_);
  }
  Waiters(const Waiters&) = delete;
  Waiters& operator=(const Waiters&) = delete;

  // An instance, with what the program wants of the stream.
  int instance(int fd, std::uint32_t events) {
    const int epoll = make();
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kStop;
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, stop_, &event);
    add(a_, epoll, fd, events, 1);
    return epoll;
  }
  void wait_in(int epoll) {
    One& one = all_.emplace_back();
    one.thread = Thread(a_, [this, &one, epoll] {
      one.tid.store(static_cast<pid_t>(::syscall(SYS_gettid)));
      epoll_event events[2] = {};
      const int n = ::epoll_wait(epoll, events, 2, -1);
      for (int i = 0; i < n; ++i) one.woken |= events[i].data.u64 != kStop;
      one.over.store(true);
      // Asleep to the end, as a thread that was not woken is.
      std::uint64_t unused;
      if (::read(leave_, &unused, sizeof unused) != sizeof unused) a_.log("cannot wait");
    });
  }
  void wait_asleep() {
    for (One& one : all_) {
      for (int ms = 0; ms < 5000 && !is_in_its_wait(one.tid.load()); ++ms) ::usleep(1000);
      one.thread.wait_asleep();
    }
  }
  void remember_sleeps() {
    for (One& one : all_) one.sleeps = sleeps_of(one.tid.load());
  }
  // Of those that sleep still: which have been up meanwhile.
  int disturbed() const {
    int count = 0;
    for (const One& one : all_)
      count += !one.over.load() && sleeps_of(one.tid.load()) != one.sleeps;
    return count;
  }
  // Until somebody has returned, and nobody is on the way any more: how many were told of the
  // stream.
  int woken() {
    for (int ms = 0; ms < 5000 && returned() == 0; ++ms) ::usleep(1000);
    for (int before = -1; before != returned();) {
      before = returned();
      wait_asleep();
    }
    const std::uint64_t each = all_.size();
    for (const int fd : {stop_, leave_}) {
      if (::write(fd, &each, sizeof each) != sizeof each) a_.log("cannot stop");
    }
    int count = 0;
    for (One& waiter : all_) {
      waiter.thread.join();
      count += waiter.woken;
    }
    return count;
  }

 private:
  struct One {
    Thread thread;
    std::atomic<pid_t> tid{0};
    std::atomic<bool> over{false};
    bool woken = false;  // by the stream
    long sleeps = 0;
  };
  int returned() const {
    int count = 0;
    for (const One& one : all_) count += one.over.load();
    return count;
  }

  Actor& a_;
  const int stop_ = ::eventfd(0, EFD_CLOEXEC);
  const int leave_ = ::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  std::deque<One> all_;  // its members stay where they are
};

// As many instances as threads, each with `events` of one stream.
void instances_of_one_stream(Actor& a, const std::vector<std::uint32_t>& wanted) {
  const int fd = a.stream();
  Waiters waiters(a);
  a.server([&] {
    for (const std::uint32_t events : wanted) {
      waiters.wait_in(waiters.instance(fd, events));
      waiters.wait_asleep();
    }
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.log("woken: %d", waiters.woken());
    a.recv(fd, 9);
  });
}

void threads_of_one_instance(Actor& a, std::uint32_t events) {
  const int fd = a.stream();
  Waiters waiters(a);
  a.server([&] {
    const int epoll = waiters.instance(fd, events);
    for (int i = 0; i < kThreads; ++i) waiters.wait_in(epoll);
    waiters.wait_asleep();
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.log("woken: %d", waiters.woken());
    a.recv(fd, 9);
  });
}

// A thread waits with a mask that holds a signal back, while another reads what comes: its waits end by bytes
// alone.
void wait_beside_a_reader(Actor& a, const std::function<int(int, const sigset_t*)>& masked_wait) {
  constexpr int kRounds = 50;
  const int fd = a.stream();
  a.client([&] { a.send(fd, "c"); });
  a.server([&] { a.recv(fd, 1, MSG_WAITALL); });
  char byte = 0;
  if (a.is_client()) {
    for (int i = 0; i <= kRounds && ::recv(fd, &byte, 1, 0) == 1; ++i) ::send(fd, "x", 1, 0);
  } else {
    count_signal(SIGALRM, false);
    std::atomic<bool> over{false};
    int interrupted = 0;
    Thread waits(a, [&] {
      sigset_t alarm;
      ::sigemptyset(&alarm);
      ::sigaddset(&alarm, SIGALRM);
      while (!over.load()) interrupted += masked_wait(fd, &alarm) < 0;
    });
    for (int i = 0; i < kRounds; ++i) {
      waits.wait_asleep();
      waits.signal(SIGALRM);
      ::send(fd, "g", 1, 0);
      while (::recv(fd, &byte, 1, MSG_DONTWAIT) != 1) continue;
    }
    over.store(true);
    ::send(fd, "g", 1, 0);  // the answer stays, for the last wait
    waits.join();
    a.log("interrupted: %d", interrupted);
  }
  a.sync();
}

}  // namespace

SCENARIO(ppoll_is_not_ended_by_what_its_mask_holds_back, kStaysOnChannel) {
  wait_beside_a_reader(a, [](int fd, const sigset_t* mask) {
    pollfd set{fd, POLLIN, 0};
    return ::ppoll(&set, 1, nullptr, mask);
  });
}
SCENARIO(epoll_pwait_is_not_ended_by_what_its_mask_holds_back, kStaysOnChannel) {
  const int epoll = make();
  bool added = false;
  wait_beside_a_reader(a, [&](int fd, const sigset_t* mask) {
    if (!std::exchange(added, true)) add(a, epoll, fd, EPOLLIN);
    epoll_event event{};
    return ::epoll_pwait(epoll, &event, 1, -1, mask);
  });
}

SCENARIO(epoll_wakes_the_thread_whose_stream_it_is, kStaysOnChannel) {
  const auto fds = streams(a, kThreads);
  // Each has its carrier, both ways: the library wakes the threads of one that changes it.
  for (const int fd : fds) {
    a.client([&] { a.send(fd, "c"); });
    a.server([&] { a.recv(fd, 1, MSG_WAITALL); });
    a.server([&] { a.send(fd, "s"); });
    a.client([&] { a.recv(fd, 1, MSG_WAITALL); });
  }
  Waiters waiters(a);
  a.server([&] {
    for (const int fd : fds) waiters.wait_in(waiters.instance(fd, EPOLLIN));
    waiters.wait_asleep();
    waiters.remember_sleeps();
  });
  for (int i = 0; i < 2; ++i) a.client([&] { a.send(fds[2], "x"); });
  a.server([&] {
    a.settle(fds[2], POLLIN, POLLIN);
    a.log("disturbed: %d", waiters.disturbed());
    a.log("woken: %d", waiters.woken());
    a.recv(fds[2], 2, MSG_WAITALL);
  });
}

SCENARIO(epoll_wakes_one_thread_of_an_instance_for_an_edge, kStaysOnChannel) {
  threads_of_one_instance(a, EPOLLIN | EPOLLET);
}
SCENARIO(epoll_wakes_one_thread_of_an_instance_for_one_shot, kStaysOnChannel) {
  threads_of_one_instance(a, EPOLLIN | EPOLLONESHOT);
}
// Each that returns leaves the bytes for the next.
SCENARIO(epoll_wakes_every_thread_of_an_instance_for_bytes_that_stay, kStaysOnChannel) {
  threads_of_one_instance(a, EPOLLIN);
}
SCENARIO(epoll_wakes_every_instance, kStaysOnChannel) {
  instances_of_one_stream(a, {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLRDHUP, EPOLLIN});
}

constexpr std::uint32_t kExclusive = EPOLLIN | EPOLLEXCLUSIVE;
constexpr std::uint32_t kExclusiveEdge = kExclusive | EPOLLET;

// epoll_ctl(2) promises one or more; the kernel wakes one.
SCENARIO(epoll_exclusive_wakes_one_instance, kStaysOnChannel) {
  instances_of_one_stream(a, {kExclusive, kExclusive, kExclusive, kExclusive});
}
SCENARIO(epoll_exclusive_wakes_one_instance_for_an_edge, kStaysOnChannel) {
  instances_of_one_stream(a, {kExclusiveEdge, kExclusiveEdge, kExclusiveEdge, kExclusiveEdge});
}
SCENARIO(epoll_exclusive_wakes_one_and_all_that_do_not_ask_so, kStaysOnChannel) {
  instances_of_one_stream(a, {kExclusive, EPOLLIN, kExclusive, EPOLLIN | EPOLLET, kExclusiveEdge});
}
SCENARIO(epoll_exclusive_wakes_every_thread_of_its_instance, kStaysOnChannel) {
  threads_of_one_instance(a, kExclusive);
}

// The next arrival is for the thread that sleeps then, and is not lost with the one before.
SCENARIO(epoll_exclusive_wakes_another_for_what_comes_later, kStaysOnChannel) {
  const int fd = a.stream();
  Waiters first(a);
  Waiters later(a);
  int epoll = -1;
  a.server([&] {
    epoll = first.instance(fd, kExclusive);
    first.wait_in(epoll);
    first.wait_asleep();
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.log("woken: %d", first.woken());
    a.recv(fd, 9);
    for (int i = 0; i < kThreads; ++i) later.wait_in(later.instance(fd, kExclusive));
    later.wait_asleep();
  });
  a.client([&] { a.send(fd, "y"); });
  a.server([&] {
    a.log("woken: %d", later.woken());
    a.recv(fd, 9);
  });
}

// What is there when it is added is told at once, to each.
SCENARIO(epoll_exclusive_tells_a_newcomer_what_there_is, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    for (const std::uint32_t events : {kExclusive, kExclusiveEdge, kExclusive}) {
      const int epoll = make();
      add(a, epoll, fd, events);
      wait(a, epoll, kSoon);
      wait(a, epoll, 0);
    }
    a.recv(fd, 9);
  });
}

// The end of the peer is told to all, bytes or none.
SCENARIO(epoll_exclusive_wakes_all_for_the_end, kStaysOnChannel) {
  const int fd = a.stream();
  Waiters waiters(a);
  a.server([&] {
    for (int i = 0; i < kThreads; ++i) waiters.wait_in(waiters.instance(fd, kExclusive));
    waiters.wait_asleep();
  });
  a.client([&] { a.shutdown(fd, SHUT_WR); });
  a.server([&] {
    a.log("woken: %d", waiters.woken());
    a.recv(fd, 9);
  });
}

}  // namespace ringroad::test
