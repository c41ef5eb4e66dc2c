// poll(): what is reported for which events, in every phase of a connection.
#include <netinet/in.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include "tests/preload/drivers/actor.h"

namespace ringroad::test {
namespace {

constexpr short kAll = POLLIN | POLLOUT | POLLRDHUP | POLLPRI;

bool is_stopped(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(") ");
  return name_end == std::string::npos || text[name_end + 2] == 'T';
}

}  // namespace

SCENARIO(poll_while_data_flows, kStaysOnChannel) {
  const int fd = a.stream();
  a.both([&] { a.poll_table(fd, "fresh"); });
  a.client([&] { a.send(fd, "data"); });
  a.server([&] { a.settle(fd, POLLIN, POLLIN); a.poll_table(fd, "data"); });
  a.server([&] { a.recv(fd, 2); a.poll_table(fd, "some data left"); });
  a.server([&] { a.recv(fd, 2); a.poll_table(fd, "data taken"); });
}

SCENARIO(poll_after_the_peers_half_close, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "last"); a.shutdown(fd, SHUT_WR); a.poll_table(fd, "own half closed"); });
  a.server([&] {
    a.settle(fd, kAll, POLLRDHUP);
    a.poll_table(fd, "data and the end");
    a.recv(fd, 10);
    a.poll_table(fd, "the end");
    a.recv(fd, 10);
    a.poll_table(fd, "the end was read");
    a.send(fd, "one more");
  });
  a.client([&] {
    a.settle(fd, kAll, POLLIN);
    a.poll_table(fd, "own half closed, data");
    a.recv(fd, 20);
  });
  a.server([&] { a.shutdown(fd, SHUT_WR); });
  a.both([&] { a.settle(fd, kAll, POLLHUP); a.poll_table(fd, "both half closed"); a.recv(fd, 4); });
}

SCENARIO(poll_after_the_peers_close, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "bye"); a.close(fd); a.poll(fd, POLLIN); });
  a.server([&] {
    a.settle(fd, kAll, POLLRDHUP);
    a.poll_table(fd, "closed, data left");
    a.recv(fd, 10);
    a.recv(fd, 10);
    a.poll_table(fd, "closed");
    a.error(fd);
  });
}

SCENARIO(poll_after_a_reset, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "before"); });
  a.client([&] {
    const linger cut{1, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &cut, sizeof cut);
    a.close(fd);
  });
  a.server([&] {
    a.settle(fd, kAll, POLLHUP);
    a.poll_table(fd, "reset, data left");
    a.recv(fd, 10);
    a.poll_table(fd, "reset");
    a.recv(fd, 10);
    a.poll_table(fd, "error taken");
    a.recv(fd, 10);
    a.error(fd);
    a.send(fd, "x", MSG_NOSIGNAL);
  });
}

SCENARIO(poll_after_own_shutdown, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.shutdown(fd, SHUT_RD); a.poll_table(fd, "own reading half"); a.recv(fd, 4); });
  a.server([&] { a.poll_table(fd, "peer does not read"); a.send(fd, "anyway"); });
  a.client([&] { a.settle(fd, POLLIN, POLLIN); a.recv(fd, 10); a.recv(fd, 10); });
  a.client([&] { a.shutdown(fd, SHUT_RDWR); a.poll_table(fd, "both halves"); });
  a.server([&] { a.settle(fd, kAll, POLLRDHUP); a.poll_table(fd, "peer shut down"); });
}

SCENARIO(poll_a_mixed_set, kStaysOnChannel) {
  const int fd = a.stream();
  const int other = a.stream();
  if (a.is_server()) {
    int pipe_ends[2];
    int pair[2];
    if (::pipe(pipe_ends) != 0 || ::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return;
    const int closed = ::dup(pipe_ends[0]);
    ::close(closed);
    const auto look = [&](const char* when) {
      pollfd set[] = {{fd, POLLIN | POLLOUT, 0},          {-1, POLLIN, 7},
                      {pipe_ends[0], POLLIN, 0},          {pair[0], POLLIN | POLLOUT, 0},
                      {a.listening(), POLLIN, 0},         {other, POLLIN, 0},
                      {closed, POLLIN, 0},                {fd, POLLIN, 0},
                      {-fd, POLLIN, 0},                   {other, 0, 0}};
      const int n = ::poll(set, std::size(set), 100);
      std::string line;
      for (const pollfd& entry : set) line += " " + poll_names(entry.revents);
      a.log("%s: %d:%s", when, n, line.c_str());
    };
    look("quiet");
    a.sync();
    a.sync();
    a.settle(other, POLLIN, POLLIN);
    look("one stream has data");
    if (::write(pipe_ends[1], "p", 1) != 1 || ::write(pair[1], "u", 1) != 1) return;
    look("and the others");
    a.recv(other, 10);
    look("the stream was read");
    ::close(pipe_ends[1]);
    ::close(pair[1]);
    look("the others' peers closed");
  } else {
    a.sync();
    a.send(other, "data");
    a.sync();
  }
  a.sync();
}

SCENARIO(poll_sleeps_until_something_comes, kStaysOnChannel) {
  const int fd = a.stream();
  const int other = a.stream();
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) return;
  const auto wait = [&](const char* what) {
    pollfd set[] = {{fd, POLLIN, 0}, {pipe_ends[0], POLLIN, 0}, {other, POLLIN, 0}};
    const int n = ::poll(set, 3, -1);
    a.log("%s: %d: %s %s %s", what, n, poll_names(set[0].revents).c_str(),
          poll_names(set[1].revents).c_str(), poll_names(set[2].revents).c_str());
  };
  if (a.is_server()) {
    Thread sleeper(a, [&] {
      wait("first");
      a.recv(other, 10);
      wait("second");
      a.recv(fd, 10);
      wait("third");
    });
    sleeper.wait_asleep();
    a.sync();
    a.sync();
    sleeper.wait_asleep();
    a.sync();
    a.sync();
    sleeper.wait_asleep();
    if (::write(pipe_ends[1], "x", 1) != 1) return;
    sleeper.join();
  } else {
    a.sync();
    a.send(other, "one");
    a.sync();
    a.sync();
    a.send(fd, "two");
    a.sync();
  }
  a.sync();
}

// By the time that the thread looks, all of them have something to tell.
SCENARIO(poll_tells_of_all_that_came_while_it_was_stopped, kStaysOnChannel) {
  constexpr std::size_t kStreams = 24;
  std::vector<pollfd> set;
  for (std::size_t i = 0; i < kStreams; ++i) set.push_back({a.stream(), POLLIN, 0});
  const int first = set.front().fd;
  if (a.is_server()) {
    const pid_t own = ::getpid();
    if (::send(first, &own, sizeof own, 0) != sizeof own) a.log("no number");
    a.sync();
    a.log("poll: %d", ::poll(set.data(), set.size(), -1));
    a.sync();
    a.log("poll: %d", ::poll(set.data(), set.size(), 0));
  } else {
    pid_t other = 0;
    if (::recv(first, &other, sizeof other, MSG_WAITALL) != sizeof other) a.log("no number");
    a.sync();
    ::usleep(100'000);  // that it sleeps, mostly
    ::kill(other, SIGSTOP);
    while (!is_stopped(other)) ::usleep(1000);
    for (const pollfd& one : set) ::send(one.fd, "x", 1, 0);
    ::kill(other, SIGCONT);
    a.sync();
  }
  a.sync();
}

// A thread may know a stream from an earlier set, and another thread wait for it by now.
SCENARIO(poll_of_fewer_streams_than_before, kStaysOnChannel) {
  const int fd = a.stream();
  const int other = a.stream();
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) return;
  if (a.is_server()) {
    const auto poll_with = [&](int second) {
      pollfd set[] = {{fd, POLLIN, 0}, {second, POLLIN, 0}};
      const int n = ::poll(set, 2, -1);
      a.log("%d: %s %s", n, poll_names(set[0].revents).c_str(), poll_names(set[1].revents).c_str());
    };
    Thread polls(a, [&] {
      poll_with(other);
      a.recv(other, 10);
      poll_with(pipe_ends[0]);
      poll_with(other);
      a.recv(other, 10);
    });
    polls.wait_asleep();
    a.sync();
    a.sync();
    polls.wait_asleep();
    const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN;
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, other, &event);
    Thread waits(a, [&] {
      a.log("epoll_wait: %d", ::epoll_wait(epoll, &event, 1, -1));
      a.recv(other, 10);
    });
    waits.wait_asleep();
    a.sync();
    a.sync();
    waits.join();
    ::close(epoll);
    polls.wait_asleep();
    char byte = 'x';
    if (::write(pipe_ends[1], &byte, 1) != 1) return;
    polls.wait_asleep();
    a.sync();
    polls.join();
  } else {
    for (const char* text : {"one", "two"}) {
      a.sync();
      a.send(other, text);
      a.sync();
    }
    a.sync();
    a.send(other, "three");
  }
  a.sync();
}

SCENARIO(poll_for_room, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_client()) {
    a.set_nonblocking(fd);
    const std::string bytes = patterned(0, 100'000);
    while (::send(fd, bytes.data(), bytes.size(), 0) > 0) {
    }
    a.poll(fd, POLLOUT);
    Thread sleeper(a, [&] { a.poll(fd, POLLOUT, 10'000); });
    sleeper.wait_asleep();
    a.sync();
    sleeper.join();
    a.shutdown(fd, SHUT_WR);
  } else {
    a.sync();
    char buffer[65536];
    while (::recv(fd, buffer, sizeof buffer, 0) > 0) {
    }
  }
  a.sync();
}

SCENARIO(ppoll_lets_a_signal_in, kStaysOnChannel) {
  const int fd = a.stream();
  a.server([&] {
    count_signal(SIGUSR1, true);
    sigset_t blocked;
    sigset_t open;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, &open);
    sigdelset(&open, SIGUSR1);
    raise(SIGUSR1);
    a.log("%d signals while blocked", signals_seen());
    pollfd entry{fd, POLLIN, 0};
    const timespec nothing{0, 0};
    const timespec second{1, 0};
    a.result("ppoll without a mask", ::ppoll(&entry, 1, &nothing, nullptr));
    a.log("%d signals", signals_seen());
    // Pending before, open inside: it must interrupt at once, and not be missed.
    a.result("ppoll with a mask", ::ppoll(&entry, 1, &second, &open));
    a.log("%d signals", signals_seen());
    raise(SIGUSR1);
    a.log("%d signals, blocked again", signals_seen());
    a.result("ppoll with a mask", ::ppoll(&entry, 1, nullptr, &open));
    a.log("%d signals", signals_seen());
    const timespec wrong{0, 2'000'000'000};
    a.result("ppoll with a wrong time", ::ppoll(&entry, 1, &wrong, nullptr));
    pthread_sigmask(SIG_SETMASK, &open, nullptr);
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    pollfd entry{fd, POLLIN, 0};
    const timespec second{1, 0};
    a.result("ppoll", ::ppoll(&entry, 1, &second, nullptr));
    a.log("%s", poll_names(entry.revents).c_str());
  });
}

SCENARIO(an_idle_connection_has_room_at_any_time, 0) {
  // Also in the moment when it changes its carrier.
  int without_room = 0;
  const int instance = ::epoll_create1(EPOLL_CLOEXEC);
  for (int i = 0; i < 10; ++i) {
    const int fd = a.stream();
    for (int message = 0; message < 2; ++message) {
      a.client([&] { a.send(fd, "x"); });
      a.server([&] { a.recv(fd, 1); a.send(fd, "y"); });
      a.client([&] { a.recv(fd, 1); });
    }
    epoll_event room{};
    room.events = EPOLLOUT;
    ::epoll_ctl(instance, EPOLL_CTL_ADD, fd, &room);
    a.both([&] {
      pollfd one{fd, POLLOUT, 0};
      for (int look = 0; look < 500; ++look) {
        without_room += ::poll(&one, 1, 0) == 1 ? 0 : 1;
        epoll_event event{};
        without_room += ::epoll_wait(instance, &event, 1, 0) == 1 ? 0 : 1;
        if (look % 100 == 50) without_room += ::send(fd, "z", 1, MSG_DONTWAIT) == 1 ? 0 : 1;
      }
    });
    a.both([&] { a.recv(fd, 5, MSG_WAITALL); });
    a.close(fd);
  }
  a.log("without room: %d", without_room);
  ::close(instance);
}

SCENARIO(a_receive_has_what_came_behind_a_poll, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] { a.send(fd, "a"); });
  a.server([&] { a.poll(fd, POLLIN); });
  a.client([&] { a.send(fd, "bcd"); });
  a.server([&] { a.recv(fd, 100); });
}

}  // namespace ringroad::test
