// Time-outs come when they should: neither early nor late.
#include <fcntl.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/settling.h"

namespace ringroad::test {

SCENARIO(poll_times_out, kStaysOnChannel) {
  const int fd = a.stream();
  a.both([&] {
    for (const int ms : {0, 1, 10, 100, 350}) {
      a.timed(ms, [&] { a.poll(fd, POLLIN, ms); });
    }
    a.timed(50, [&] { a.poll(fd, 0, 50); });
    a.timed(0, [&] { a.poll(fd, POLLIN | POLLOUT, 1000); });
    pollfd entry{fd, POLLIN, 0};
    const timespec t{0, 20'000'000};
    a.timed(20, [&] { a.result("ppoll", ::ppoll(&entry, 1, &t, nullptr)); });
    a.log("time left alone: %ld", t.tv_nsec);
  });
}

SCENARIO(poll_times_out_beside_a_busy_stream, kStaysOnChannel) {
  const int quiet = a.stream();
  const int busy = a.stream();
  if (a.is_server()) {
    std::atomic<bool> done{false};
    Thread reader(a, [&] {
      char buffer[64];
      while (::recv(busy, buffer, sizeof buffer, 0) > 0) {
      }
      done.store(true);
    });
    for (int i = 0; i < 3; ++i) a.timed(100, [&] { a.poll(quiet, POLLIN, 100); });
    a.sync();
    reader.join();
    a.log("the reader saw the end: %d", done.load());
  } else {
    std::atomic<bool> stop{false};
    Thread writer(a, [&] {
      while (!stop.load()) ::send(busy, "chatter", 7, MSG_NOSIGNAL);
    });
    a.sync();
    stop.store(true);
    writer.join();
    ::shutdown(busy, SHUT_WR);
  }
  a.sync();
}

SCENARIO(a_receive_times_out, kStaysOnChannel) {
  const int fd = a.stream();
  a.both([&] {
    a.set_timeout(fd, SO_RCVTIMEO, 100);
    a.timed(100, [&] { a.recv(fd, 10); });
    a.timed(100, [&] { a.read(fd, 10); });
    a.timed(0, [&] { a.recv(fd, 10, MSG_DONTWAIT); });
    a.set_timeout(fd, SO_RCVTIMEO, 300);
    a.timed(300, [&] { a.recv(fd, 10); });
  });
  a.client([&] { a.send(fd, "abc"); });
  a.server([&] {
    a.timed(0, [&] { a.recv(fd, 10); });
    a.set_timeout(fd, SO_RCVTIMEO, 50);
  });
  a.client([&] { a.send(fd, "de"); });
  a.server([&] {
    // What came before the time-out is the result.
    a.timed(50, [&] { a.recv(fd, 10, MSG_WAITALL); });
    a.set_timeout(fd, SO_RCVTIMEO, 0);
    timeval tv{9, 9};
    socklen_t length = sizeof tv;
    ::getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, &length);
    a.log("back to %ld s", static_cast<long>(tv.tv_sec));
  });
}

SCENARIO(a_send_times_out, kStaysOnChannel) {
  const int fd = a.stream();
  if (a.is_client()) {
    a.keep_full_ring(fd);
    // The kernel's buffers grow for a while.
    const std::string bytes = patterned(0, 1 << 20);
    pollfd entry{fd, POLLOUT, 0};
    do {
      while (::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
      }
    } while (::poll(&entry, 1, 100) > 0);
    a.set_timeout(fd, SO_SNDTIMEO, 200);
    const auto big = [&] { a.log("all of it: %d", ::send(fd, bytes.data(), bytes.size(), 0) > 0); };
    a.timed(200, [&] {
      // There may be room by now for a part of it.
      a.log("all of it: %d", ::send(fd, bytes.data(), bytes.size(), 0) == ssize_t{1} << 20);
    });
    a.timed(200, [&] { a.write(fd, "no room"); });
    a.timed(0, [&] { a.send(fd, "no room", MSG_DONTWAIT); });
    a.sync();
    a.set_timeout(fd, SO_SNDTIMEO, 10'000);
    a.timed(0, big);
    a.shutdown(fd, SHUT_WR);
  } else {
    a.sync();
    char buffer[65536];
    while (::recv(fd, buffer, sizeof buffer, 0) > 0) {
    }
  }
  a.sync();
}

SCENARIO(a_time_out_of_one_direction_is_not_the_others, kStaysOnChannel) {
  const int fd = a.stream();
  a.client([&] {
    a.set_timeout(fd, SO_SNDTIMEO, 20);
    a.send(fd, "go");
  });
  if (a.is_client()) {
    Thread reader(a, [&] { a.recv(fd, 10); });
    reader.wait_asleep();
    // Sleeping still, long after the sender's time.
    a.poll(fd, 0, 100);
    reader.wait_asleep();
    a.sync();
    reader.join();
  } else {
    a.sync();
    a.recv(fd, 10);
    a.send(fd, "answer");
  }
  a.sync();
}

// What a program computes as left of its time may be less than nothing.
SCENARIO(a_time_out_below_zero_is_over, kStaysOnChannel) {
  const int fd = a.stream();
  const auto set = [&](int option, time_t seconds) {
    const timeval tv{seconds, 0};
    a.result("setsockopt", ::setsockopt(fd, SOL_SOCKET, option, &tv, sizeof tv));
    timeval now{9, 9};
    socklen_t length = sizeof now;
    ::getsockopt(fd, SOL_SOCKET, option, &now, &length);
    a.log("%ld s", static_cast<long>(now.tv_sec));
  };
  a.client([&] {
    set(SO_RCVTIMEO, -1);
    a.set_nonblocking(fd, false);
    a.timed(0, [&] { a.recv(fd, 10); });
    a.timed(0, [&] { a.recv(fd, 10, MSG_PEEK | MSG_WAITALL); });
  });
  a.server([&] { a.send(fd, "abc"); });
  a.client([&] {
    a.settle(fd, POLLIN, POLLIN);
    a.timed(0, [&] { a.recv(fd, 10, MSG_WAITALL); });
    a.set_timeout(fd, SO_RCVTIMEO, 50);
    a.timed(50, [&] { a.recv(fd, 10); });
    set(SO_RCVTIMEO, 20'000'000'000);
  });
  if (a.is_client()) {
    Thread reader(a, [&] { a.recv(fd, 10); });
    reader.wait_asleep();
    a.sync();
    reader.join();
    a.keep_full_ring(fd);
    fill_for_long(fd);
    set(SO_SNDTIMEO, -1);
    a.timed(0, [&] { a.send(fd, "no room"); });
  } else {
    a.sync();
    a.send(fd, "d");
  }
  a.sync();
}

// So the kernel says of a receive that asks for no byte, whatever has ended its sleep.
SCENARIO(a_receive_of_nothing_that_times_out_is_no_error, kStaysOnChannel) {
  const int fd = a.stream();
  a.both([&] {
    a.set_timeout(fd, SO_RCVTIMEO, 50);
    a.timed(50, [&] { a.recv(fd, 0); });
    a.timed(0, [&] { a.recv(fd, 0, MSG_DONTWAIT); });
    a.timed(0, [&] { a.read(fd, 0); });
  });
}

}  // namespace ringroad::test
