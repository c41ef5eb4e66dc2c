// select(2) and pselect(2) on sets of all kinds of descriptors, streams among them.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/epoll_calls.h"

namespace ringroad::test {
namespace {

// A TCP connection of this process with itself, at an address that the tests' policy leaves to the
// kernel.
struct LeftAlone {
  int one = -1;
  int other = -1;

  explicit LeftAlone(Actor& a) {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    one = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    ::inet_pton(AF_INET, "127.0.0.99", &at.sin_addr);
    auto* any = reinterpret_cast<sockaddr*>(&at);
    socklen_t length = sizeof at;
    a.result("bind", ::bind(one, any, length));
    a.result("bind", ::bind(listener, any, length));
    a.result("listen", ::listen(listener, 1));
    ::getsockname(listener, any, &length);
    a.result("connect", ::connect(one, any, length));
    other = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    ::close(listener);
  }
};

// Both calls, with the same sets. Without a time: for ever.
class Sets {
 public:
  explicit Sets(Actor& a) : a_(a) {}

  void member(const char* name, int fd) { members_.push_back({name, fd}); }
  // What is asked of each, as "RWE", and what is answered.
  void ask(const char* when, const char* what, bool by_pselect, const timeval* time) {
    fd_set sets[3];
    fd_set* asked[3] = {};
    int count = 0;
    for (int i = 0; i < 3; ++i) {
      FD_ZERO(&sets[i]);
      if (std::string(what).find(kLetters[i]) != std::string::npos) asked[i] = &sets[i];
      for (const Member& m : members_) {
        if (asked[i] != nullptr) FD_SET(m.fd, asked[i]);
        count = std::max(count, m.fd + 1);
      }
    }
    errno = 0;
    int n;
    std::string left;
    if (by_pselect) {
      timespec copy{};
      if (time != nullptr) copy = {time->tv_sec, time->tv_usec * 1000};
      n = ::pselect(count, asked[0], asked[1], asked[2], time != nullptr ? &copy : nullptr,
                    nullptr);
      // Which it leaves alone.
      if (time != nullptr) left = copy.tv_sec == time->tv_sec ? ", all left" : ", some left";
    } else {
      timeval copy{};
      if (time != nullptr) copy = *time;
      n = ::select(count, asked[0], asked[1], asked[2], time != nullptr ? &copy : nullptr);
      if (time != nullptr) left = copy.tv_sec + copy.tv_usec > 0 ? ", time left" : ", none left";
    }
    const int error = errno;
    std::string line;
    for (const Member& m : members_) {
      line += std::string(" ") + m.name + ":";
      for (int i = 0; i < 3; ++i) {
        line += asked[i] != nullptr && FD_ISSET(m.fd, asked[i]) ? kLetters[i] : '-';
      }
    }
    a_.log("%s, %s %s = %d%s%s%s%s", when, by_pselect ? "pselect" : "select", what, n,
           n < 0 ? " " : "", n < 0 ? strerrorname_np(error) : "", left.c_str(), line.c_str());
  }
  void ask_all(const char* when) {
    const timeval nothing{0, 0};
    for (const bool by_pselect : {false, true}) {
      for (const char* what : {"R", "W", "E", "RWE"}) ask(when, what, by_pselect, &nothing);
    }
  }

 private:
  struct Member {
    const char* name;
    int fd;
  };
  static constexpr char kLetters[] = "RWE";
  Actor& a_;
  std::vector<Member> members_;
};

struct Others {
  int pipe[2] = {-1, -1};
  int event = ::eventfd(0, EFD_CLOEXEC);
  LeftAlone tcp;

  explicit Others(Actor& a) : tcp(a) { a.result("pipe", ::pipe2(pipe, O_CLOEXEC)); }
  void put_in(Sets& sets) const {
    sets.member("pipe", pipe[0]);
    sets.member("pipe's other end", pipe[1]);
    sets.member("eventfd", event);
    sets.member("tcp", tcp.one);
  }
  void tell_event(Actor& a) const {
    const std::uint64_t one = 1;
    a.result("event", ::write(event, &one, sizeof one));
  }
};

}  // namespace

SCENARIO(select_a_mixed_set, kStaysOnChannel) {
  const auto fds = streams(a, 2);
  if (a.is_server()) {
    const Others others(a);
    const int nest = make();
    add(a, nest, fds[1], EPOLLIN);
    Sets sets(a);
    sets.member("stream", fds[0]);
    others.put_in(sets);
    sets.member("another", fds[1]);
    sets.member("instance", nest);
    sets.member("listener", a.listening());
    sets.ask_all("quiet");
    const timeval short_time{0, 60'000};
    a.timed(60, [&] { sets.ask("quiet", "RE", false, &short_time); });
    a.timed(60, [&] { sets.ask("quiet", "R", true, &short_time); });
    a.sync();
    a.sync();
    a.settle(fds[1], POLLIN, POLLIN);
    sets.ask_all("a stream has bytes");
    a.result("to the pipe", ::write(others.pipe[1], "p", 1));
    others.tell_event(a);
    a.result("over tcp", ::send(others.tcp.other, "t", 1, 0));
    a.settle(others.tcp.one, POLLIN, POLLIN);
    sets.ask_all("and the others");
    a.recv(fds[1], 9);
    sets.ask_all("the stream was read");
    ::close(others.pipe[1]);
    ::close(others.pipe[0]);
    const timeval second{1, 0};
    sets.ask("two were closed", "RWE", false, &second);
    sets.ask("two were closed", "RWE", true, &second);
    sets.ask("two were closed", "W", false, &second);
  } else {
    a.sync();
    a.send(fds[1], "bytes");
    a.sync();
  }
  a.sync();
}

SCENARIO(select_of_numbers_that_are_closed, kStaysOnChannel) {
  const auto fds = streams(a, 2);
  a.client([&] { a.send(fds[0], "x"); });
  a.server([&] {
    a.settle(fds[0], POLLIN, POLLIN);
    const timeval nothing{0, 0};
    const timeval second{1, 0};
    const int was_a_copy = ::dup(fds[0]);
    const int was_a_pipe = ::eventfd(0, EFD_CLOEXEC);
    a.close(was_a_copy);
    a.close(was_a_pipe);
    for (const int closed : {was_a_copy, was_a_pipe}) {
      Sets sets(a);
      sets.member("stream", fds[0]);
      sets.member("closed", closed);
      for (const bool by_pselect : {false, true}) {
        for (const char* what : {"R", "W", "E"}) sets.ask("closed", what, by_pselect, &nothing);
        sets.ask("closed, with time", "RWE", by_pselect, &second);
      }
    }
    // A stream's own number, when the stream is gone.
    a.close(fds[1]);
    Sets sets(a);
    sets.member("stream", fds[0]);
    sets.member("its neighbour", fds[1]);
    sets.ask("a stream was closed", "R", false, &second);
    sets.ask("a stream was closed", "RWE", true, nullptr);
    Sets alone(a);
    alone.member("was a stream", fds[1]);
    alone.ask("nothing else", "R", false, &second);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fds[0], &in);
    timeval wrong{-1, 0};
    a.result("a negative time", ::select(fds[0] + 1, &in, nullptr, nullptr, &wrong));
    timespec long_ones{0, 1'000'000'000};
    a.result("too many nanoseconds",
             ::pselect(fds[0] + 1, &in, nullptr, nullptr, &long_ones, nullptr));
    a.result("a negative count", ::select(-1, &in, nullptr, nullptr, nullptr));
    a.log("still asked: %d", FD_ISSET(fds[0], &in) != 0);
    a.recv(fds[0], 9);
  });
}

SCENARIO(select_sleeps_until_one_of_a_mixed_set_is_ready, kStaysOnChannel) {
  const int fd = a.stream();
  const auto asleep = [&](Sets& sets, bool by_pselect, const std::function<void()>& rouse) {
    Thread sleeper(a, [&] { sets.ask("slept", by_pselect ? "R" : "RE", by_pselect, nullptr); });
    sleeper.wait_asleep();
    rouse();
    sleeper.join();
  };
  if (a.is_server()) {
    const Others others(a);
    Sets sets(a);
    sets.member("stream", fd);
    sets.member("pipe", others.pipe[0]);
    sets.member("eventfd", others.event);
    sets.member("tcp", others.tcp.one);
    for (const bool by_pselect : {false, true}) {
      char bytes[8];
      asleep(sets, by_pselect, [&] { a.result("pipe", ::write(others.pipe[1], "p", 1)); });
      a.result("read", ::read(others.pipe[0], bytes, 1));
      asleep(sets, by_pselect, [&] { others.tell_event(a); });
      a.result("read", ::read(others.event, bytes, 8));
      asleep(sets, by_pselect, [&] { a.result("tcp", ::send(others.tcp.other, "t", 1, 0)); });
      a.result("read", ::read(others.tcp.one, bytes, 1));
      asleep(sets, by_pselect, [&] { a.sync(); });
      a.recv(fd, 9);
    }
    asleep(sets, true, [&] { a.close(others.tcp.other); });
    Sets rest(a);
    rest.member("stream", fd);
    rest.member("pipe", others.pipe[0]);
    asleep(rest, false, [&] { a.close(others.pipe[1]); });
  } else {
    for (int i = 0; i < 2; ++i) {
      a.sync();
      a.send(fd, "x");
    }
  }
  a.sync();
}

}  // namespace ringroad::test
