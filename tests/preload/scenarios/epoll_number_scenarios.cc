// epoll and the numbers of descriptors: closed, duplicated, used again, and two of one stream.
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/epoll_calls.h"

namespace ringroad::test {
namespace {

// A number of a stream that lives on under another one becomes a second stream's, while the first one
// changes its carrier.
void number_becomes_anothers(Actor& a, std::uint32_t events) {
  const int first = a.stream();
  const int second = a.stream();
  const int epoll = make();
  int copy = -1;
  a.server([&] {
    add(a, epoll, first, events, 1);
    wait(a, epoll, 0);
    copy = ::dup(first);
    ::dup2(second, first);
    ::close(second);  // the number is the only one that it has now
    add(a, epoll, first, events, 2);
    wait(a, epoll, 0);
  });
  for (int i = 0; i < 8; ++i) {
    a.client([&] { a.send(first, "ping"); });
    a.server([&] {
      a.settle(copy, POLLIN, POLLIN);
      epoll_event seen[4];  // an edge may be told once more while it changes
      a.log("told %d", ::epoll_wait(epoll, seen, 4, kSoon) > 0);
      a.recv(copy, 9);
      a.send(copy, "pong");
    });
    a.client([&] { a.recv(first, 9); });
  }
  a.server([&] {
    epoll_event seen[4];
    ::epoll_wait(epoll, seen, 4, 0);
  });
  a.client([&] { a.send(second, "x"); });
  a.server([&] { wait(a, epoll, kSoon); });
}

}  // namespace

SCENARIO(epoll_number_becomes_another_streams, 0) { number_becomes_anothers(a, EPOLLIN); }
SCENARIO(epoll_number_with_edges_becomes_another_streams, 0) {
  number_becomes_anothers(a, EPOLLIN | EPOLLET);
}

SCENARIO(epoll_edge_is_not_told_again_when_a_number_is_closed, 0) {
  const int fd = a.stream();
  const int epoll = make();
  int copy = -1;
  a.server([&] { add(a, epoll, fd, EPOLLIN | EPOLLET); });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    wait(a, epoll, kSoon);
    copy = ::dup(fd);
    a.close(fd);
    wait(a, epoll, 20);
  });
  a.client([&] { a.send(fd, "y"); });
  a.server([&] {
    wait(a, epoll, kSoon);
    a.recv(copy, 9);
    a.close(copy);
  });
}

SCENARIO(epoll_close_takes_it_out, 0) {
  const auto fds = streams(a, 3);
  const int epoll = make();
  a.client([&] { for (const int fd : fds) a.send(fd, "x"); });
  a.server([&] {
    for (std::size_t i = 0; i < fds.size(); ++i) {
      a.settle(fds[i], POLLIN, POLLIN);
      add(a, epoll, fds[i], EPOLLIN, i);
    }
    wait(a, epoll, kSoon);
    a.recv(fds[0], 9);
    a.close(fds[0]);
    wait(a, epoll, 0);
    a.recv(fds[1], 9);
    const int devnull = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::dup2(devnull, fds[1]);  // an implicit close
    ::close(devnull);
    wait(a, epoll, 0);
    remove(a, epoll, fds[1]);
  });
}

SCENARIO(epoll_a_number_used_again_has_no_past, 0) {
  const int first = a.stream();
  const int epoll = make();
  a.server([&] { add(a, epoll, first, EPOLLIN | EPOLLOUT, 1); a.close(first); });
  const int second = a.stream();
  a.server([&] {
    // It has it already, unless a descriptor of the library's own was there for a moment
    // (docs/compatibility.md).
    a.log("the same number %d", ::dup2(second, first) == first);
    if (second != first) ::close(second);
    wait(a, epoll, 0);
    modify(a, epoll, first, EPOLLIN);
    add(a, epoll, first, EPOLLIN, 2);
    wait(a, epoll, 0);
  });
  a.client([&] { a.send(second, "x"); });
  a.server([&] { wait(a, epoll, kSoon); });
}

SCENARIO(epoll_a_duplicate_keeps_it_in, 0) {
  const int fd = a.stream();
  const int epoll = make();
  int copy = -1;
  a.server([&] {
    add(a, epoll, fd, EPOLLIN);
    copy = ::dup(fd);
    a.close(fd);
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    wait(a, epoll, kSoon);
    a.recv(copy, 9);
    wait(a, epoll, 0);
    a.close(copy);
    wait(a, epoll, 0);
  });
}

SCENARIO(epoll_number_of_a_duplicate_is_used_again, 0) {
  const int fd = a.stream();
  const int second = a.stream();
  const int epoll = make();
  int copy = -1;
  a.server([&] {
    add(a, epoll, fd, EPOLLIN, 1);
    copy = ::dup(fd);
    ::dup2(second, fd);
    add(a, epoll, fd, EPOLLIN, 2);
    add(a, epoll, fd, EPOLLIN, 3);
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] { a.settle(copy, POLLIN, POLLIN); wait(a, epoll, kSoon); });
  a.client([&] { a.send(second, "y"); });
  a.server([&] {
    a.recv(copy, 9);
    a.settle(fd, POLLIN, POLLIN);
    wait(a, epoll, kSoon);
  });
}

SCENARIO(epoll_number_was_closed_and_the_duplicate_is_added, 0) {
  const int fd = a.stream();
  const int epoll = make();
  int copy = -1;
  a.server([&] {
    add(a, epoll, fd, EPOLLIN, 1);
    copy = ::dup(fd);
    ::close(fd);
    add(a, epoll, copy, EPOLLIN, 2);
    add(a, epoll, copy, EPOLLIN, 3);
    modify(a, epoll, fd, EPOLLIN, 4);
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.settle(copy, POLLIN, POLLIN);
    wait(a, epoll, kSoon);
    a.recv(copy, 9);
    a.close(copy);
    wait(a, epoll, 0);
  });
  a.client([&] { a.recv(fd, 1); });
}

SCENARIO(epoll_number_is_the_same_files_again, 0) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    const int copy = ::dup(fd);
    add(a, epoll, copy, EPOLLPRI, 1);
    wait(a, epoll, 0);
    ::close(fd);
    remove(a, epoll, copy);
    ::dup2(copy, fd);
    ::close(copy);
    add(a, epoll, fd, EPOLLIN, 2);
    wait(a, epoll, 0);
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    wait(a, epoll, kSoon);
    a.recv(fd, 9);
    wait(a, epoll, 0);
  });
}

SCENARIO(epoll_under_two_numbers, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  a.server([&] {
    const int copy = ::dup(fd);
    add(a, epoll, fd, EPOLLIN, 1);
    add(a, epoll, copy, EPOLLOUT, 2);
    add(a, epoll, copy, EPOLLIN, 3);
    wait(a, epoll, kSoon);
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] { a.settle(fd, POLLIN, POLLIN); wait(a, epoll, kSoon); });
}

// Each of the two is asked for edges of its own, changed and taken out without the other.
SCENARIO(epoll_under_two_numbers_each_has_its_own, kStaysOnChannel) {
  const int fd = a.stream();
  const int epoll = make();
  int copy = -1;
  a.server([&] {
    copy = ::dup(fd);
    add(a, epoll, fd, EPOLLIN | EPOLLET, 1);
    add(a, epoll, copy, EPOLLIN, 2);
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    wait(a, epoll, kSoon);
    wait(a, epoll, 0);
    modify(a, epoll, copy, EPOLLIN | EPOLLONESHOT, 3);
    wait(a, epoll, 0);
    wait(a, epoll, 0);
    modify(a, epoll, fd, EPOLLIN | EPOLLET, 4);
    wait(a, epoll, 0);
    a.recv(fd, 1);
  });
  a.client([&] { a.send(fd, "y"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    wait(a, epoll, kSoon);
    modify(a, epoll, copy, EPOLLIN, 5);
    wait(a, epoll, 0);
    remove(a, epoll, fd);
    remove(a, epoll, fd);
    wait(a, epoll, 0);
    a.recv(copy, 1);
    wait(a, epoll, 0);
  });
  a.client([&] { a.send(fd, "z"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    wait(a, epoll, kSoon);
    add(a, epoll, fd, EPOLLIN, 6);
    a.close(fd);
    wait(a, epoll, 0);
    a.close(copy);
    wait(a, epoll, 0);
  });
}

// Both numbers are closed, a third keeps the file, and with it both.
SCENARIO(epoll_under_two_numbers_that_are_closed, 0) {
  const int fd = a.stream();
  const int epoll = make();
  int third = -1;
  a.server([&] {
    const int copy = ::dup(fd);
    third = ::dup(fd);
    add(a, epoll, fd, EPOLLIN, 1);
    add(a, epoll, copy, EPOLLIN, 2);
    a.close(fd);
    a.close(copy);
  });
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.settle(third, POLLIN, POLLIN);
    wait(a, epoll, kSoon);
    a.recv(third, 9);
    wait(a, epoll, 0);
  });
  a.client([&] { a.send(fd, "!", MSG_OOB); });  // the kernel's from here on
  a.server([&] {
    a.settle(third, POLLPRI, POLLPRI);
    wait(a, epoll, 0);
    a.close(third);
    wait(a, epoll, 0);
  });
}

namespace {

// A number that is in an instance comes to be something else: `replace` does that, and nobody keeps
// the file. Nothing must be left of it, which the program could not take out: its waits would never
// sleep again.
void number_is_taken_over(Actor& a, std::uint32_t events, bool with_a_copy,
                          const std::function<void(int fd, int other)>& replace) {
  const int fd = a.stream();
  const int other = a.stream();
  const int level = make();
  const int nested = make();
  int copy = -1;
  for (int i = 0; i < 4; ++i) {
    a.client([&] { a.send(fd, "ping"); });
    a.server([&] {
      a.recv(fd, 9);
      a.send(fd, "pong");
    });
    a.client([&] { a.recv(fd, 9); });
  }
  a.client([&] { a.send(fd, "x"); });
  a.server([&] {
    a.settle(fd, POLLIN, POLLIN);
    add(a, level, fd, events, 1);
    add(a, nested, level, EPOLLIN, 2);
    wait(a, level, kSoon);
    if (with_a_copy) copy = ::dup(fd);
    replace(fd, other);
    wait(a, level, 20);
    wait(a, nested, 20);
    remove(a, level, fd);
    modify(a, level, fd, EPOLLIN, 5);
    if (!with_a_copy) return;
    a.close(copy);
    wait(a, level, 20);
    wait(a, nested, 20);
  });
  a.server([&] {
    add(a, level, other, EPOLLIN, 3);
    wait(a, level, 20);
  });
  a.client([&] { a.send(other, "y"); });
  a.server([&] {
    a.settle(other, POLLIN, POLLIN);
    wait(a, level, kSoon);
    a.recv(other, 9);
    wait(a, level, 20);
  });
  a.client([&] { a.settle(fd, POLLIN, POLLHUP); });
}

void put_another(int fd, int other) { ::dup2(other, fd); }
void put_a_pipe(int fd, int) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  ::dup3(ends[0], fd, O_CLOEXEC);
  ::close(ends[0]);
}

}  // namespace

SCENARIO(epoll_dup2_of_a_stream_over_a_ready_one, 0) {
  number_is_taken_over(a, EPOLLIN | EPOLLOUT, false, put_another);
}
SCENARIO(epoll_dup2_of_a_stream_over_a_ready_one_with_a_copy, 0) {
  number_is_taken_over(a, EPOLLIN, true, put_another);
}
SCENARIO(epoll_dup3_of_a_pipe_over_a_ready_one, 0) {
  number_is_taken_over(a, EPOLLIN | EPOLLRDHUP, false, put_a_pipe);
}
SCENARIO(epoll_dup3_of_a_pipe_over_a_ready_one_with_a_copy, 0) {
  number_is_taken_over(a, EPOLLIN | EPOLLOUT, true, put_a_pipe);
}

// One thread puts a stream in and takes it out, another one makes something else of its number:
// whichever comes first, nothing of the stream is left in the instance.
SCENARIO(epoll_add_races_dup2_over_the_number, 0) {
  const int epoll = make();
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  constexpr int kRounds = 40;
  int left = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int fd = a.stream();
    for (int i = 0; i < 2; ++i) {
      if (a.is_client()) ::send(fd, "x", 1, MSG_NOSIGNAL);
      char byte;
      if (a.is_server() && ::recv(fd, &byte, 1, 0) == 1) ::send(fd, "y", 1, MSG_NOSIGNAL);
      if (a.is_client() && ::recv(fd, &byte, 1, 0) != 1) a.log("no answer");
    }
    if (a.is_server()) {
      std::atomic<bool> over{false};
      Thread adder(a, [&] {
        epoll_event event{};
        event.events = EPOLLIN;
        while (!over.load()) {
          if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) continue;
          epoll_event seen{};
          ::epoll_wait(epoll, &seen, 1, 0);
          ::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, &event);
        }
      });
      ::usleep(100 + static_cast<useconds_t>(round) % 8 * 50);
      ::dup2(nothing, fd);
      over.store(true);
      adder.join();
    }
    a.sync();
    a.client([&] { ::close(fd); });
    // Its end would be told.
    epoll_event seen{};
    if (a.is_server()) left += ::epoll_wait(epoll, &seen, 1, 5) > 0 ? 1 : 0;
    a.sync();
    if (a.is_server()) ::close(fd);
  }
  a.log("left %d", left);
}

}  // namespace ringroad::test
