// Waits that sleep with an array of events that is not there: the kernel says so when there is an event.
#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <thread>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/memory_hole.h"

namespace ringroad::test {
namespace {

constexpr int kStream = 7;
constexpr int kOther = 8;
constexpr std::uint32_t kHow[] = {0, EPOLLET, EPOLLONESHOT};

void add(int instance, int fd, std::uint32_t events, int told) {
  epoll_event event{EPOLLIN | events, {.fd = told}};
  ::epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event);
}
void change(int instance, int fd, std::uint32_t events, int told) {
  epoll_event event{EPOLLIN | events, {.fd = told}};
  ::epoll_ctl(instance, EPOLL_CTL_MOD, fd, &event);
}

using Wait = int (*)(int instance, epoll_event* events);
constexpr Wait kWaits[] = {
    [](int instance, epoll_event* events) { return ::epoll_wait(instance, events, 4, -1); },
    [](int instance, epoll_event* events) { return ::epoll_pwait(instance, events, 4, 20'000, nullptr); },
    [](int instance, epoll_event* events) { return ::epoll_pwait2(instance, events, 4, nullptr, nullptr); },
};

// A thread that waits in the instance with such an array.
class Sleeper {
 public:
  Sleeper(Actor& a, int instance, Wait wait, epoll_event* events)
      : actor_(a), thread_(a, [this, &a, instance, wait, events] {
          a.result("wait", wait(instance, events));
          has_returned_.store(true);
        }) {
    thread_.wait_asleep();
  }
  // After what no program can see.
  void goes_on_sleeping(const char* what) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    actor_.log("%s: returned %d", what, has_returned_.load());
  }
  void join() { thread_.join(); }

 private:
  Actor& actor_;
  std::atomic<bool> has_returned_{false};
  Thread thread_;
};

epoll_event* no_events() { return reinterpret_cast<epoll_event*>(before_a_hole(4)); }

// What waits with memory tell from then on: each event once more, or for ever.
void log_what_is_told(Actor& a, int instance) {
  for (int i = 0; i < 2; ++i) {
    epoll_event events[4];
    const int n = ::epoll_wait(instance, events, 4, 0);
    a.result("then", n);
    for (int k = 0; k < n; ++k) a.log("  %d: %x", events[k].data.fd, events[k].events);
  }
}

}  // namespace

SCENARIO(epoll_sleeps_without_memory_until_there_is_an_event, kStaysOnChannel) {
  const int fd = a.stream();
  for (const std::uint32_t how : kHow) {
    for (const Wait wait : kWaits) {
      if (a.is_server()) {
        const int instance = ::epoll_create1(EPOLL_CLOEXEC);
        add(instance, fd, how, kStream);
        Sleeper sleeper(a, instance, wait, no_events());
        change(instance, fd, how, kStream);
        sleeper.goes_on_sleeping("a change");
        a.sync();
        sleeper.join();
        log_what_is_told(a, instance);
        a.recv(fd, 100);
        ::close(instance);
      } else {
        a.sync();
        a.send(fd, "ten bytes.");
      }
      a.sync();
    }
  }
}

SCENARIO(epoll_sleeps_with_null_until_there_is_an_event, kStaysOnChannel) {
  const int fd = a.stream();
  for (const Wait wait : kWaits) {
    if (a.is_server()) {
      const int instance = ::epoll_create1(EPOLL_CLOEXEC);
      add(instance, fd, 0, kStream);
      Sleeper sleeper(a, instance, wait, nullptr);
      change(instance, fd, 0, kStream);
      sleeper.goes_on_sleeping("a change");
      a.sync();
      sleeper.join();
      a.result("at once", wait(instance, nullptr));
      a.recv(fd, 100);
      ::close(instance);
    } else {
      a.sync();
      a.send(fd, "ten bytes.");
    }
    a.sync();
  }
}

SCENARIO(epoll_sleeps_without_memory_as_its_time_passes, kStaysOnChannel) {
  const int fd = a.stream();
  a.server([&] {
    const int instance = ::epoll_create1(EPOLL_CLOEXEC);
    add(instance, fd, 0, kStream);
    const Wait briefly = [](int epfd, epoll_event* events) { return ::epoll_wait(epfd, events, 4, 200); };
    Sleeper sleeper(a, instance, briefly, no_events());
    change(instance, fd, EPOLLET, kStream);
    sleeper.join();
    // The kernel refuses this one before it sleeps.
    a.result("beyond", ::epoll_wait(instance, reinterpret_cast<epoll_event*>(-4096L), 4, 200));
    ::close(instance);
  });
}

SCENARIO(epoll_without_memory_loses_no_event_of_another_descriptor, kStaysOnChannel) {
  const int fd = a.stream();
  a.server([&] {
    for (const std::uint32_t how : kHow) {
      int ends[2];
      a.result("pipe", ::pipe(ends));
      const int instance = ::epoll_create1(EPOLL_CLOEXEC);
      add(instance, fd, how, kStream);
      add(instance, ends[0], how, kOther);
      Sleeper sleeper(a, instance, kWaits[0], no_events());
      change(instance, fd, how, kStream);
      sleeper.goes_on_sleeping("a change");
      a.result("write", ::write(ends[1], "x", 1));
      sleeper.join();
      a.result("once more", ::epoll_wait(instance, no_events(), 4, 0));
      log_what_is_told(a, instance);
      for (const int number : {instance, ends[0], ends[1]}) ::close(number);
    }
  });
}

SCENARIO(epoll_sleeps_without_memory_as_its_first_stream_comes, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_server()) {
    int ends[2];
    a.result("pipe", ::pipe(ends));
    const int instance = ::epoll_create1(EPOLL_CLOEXEC);
    add(instance, ends[0], 0, kOther);
    Sleeper sleeper(a, instance, kWaits[0], no_events());
    add(instance, fd, 0, kStream);
    sleeper.goes_on_sleeping("the first stream");
    a.sync();
    sleeper.join();
    log_what_is_told(a, instance);
    a.recv(fd, 100);
    for (const int number : {instance, ends[0], ends[1]}) ::close(number);
  } else {
    a.sync();
    a.send(fd, "ten bytes.");
  }
  a.sync();
}

SCENARIO(epoll_sleeps_without_memory_as_a_stream_goes_back, kComesBack) {
  const int fd = a.stream();
  if (a.is_server()) {
    const int instance = ::epoll_create1(EPOLL_CLOEXEC);
    add(instance, fd, 0, kStream);
    Sleeper sleeper(a, instance, kWaits[0], no_events());
    a.sync();
    sleeper.goes_on_sleeping("the peer's return");
    a.sync();
    sleeper.join();
    log_what_is_told(a, instance);
    a.recv(fd, 100);
    ::close(instance);
  } else {
    a.sync();
    int mark = 0;
    a.result("ioctl", ::ioctl(fd, SIOCATMARK, &mark));
    a.sync();
    a.send(fd, "ten bytes.");
  }
  a.sync();
}

}  // namespace ringroad::test
