// TCP connections of a program with itself, for the programs of these tests.
//
// Thread rule: a Listener is one thread's. The caller that gets a Loopback closes its numbers. Failures end
// the program, with the reason on standard error.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace ringroad::test {

[[noreturn]] inline void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

inline int connected_to(const sockaddr_in& at) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) fail("connect");
  return fd;
}

struct Loopback {
  int client = -1;
  int server = -1;
};

class Listener {
 public:
  Listener() {
    if (bind(fd_, reinterpret_cast<sockaddr*>(&at_), sizeof at_) != 0 || listen(fd_, 64) != 0 ||
        getsockname(fd_, reinterpret_cast<sockaddr*>(&at_), &length_) != 0) {
      fail("listen");
    }
  }

  // connect(2) and accept(2) return when the stream is on a channel, if the policy says so.
  Loopback connect_to() {
    Loopback made;
    std::thread other([&] { made.server = accepted(); });
    made.client = connected_to(at_);
    other.join();
    return made;
  }
  int accepted() {
    const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) fail("accept4");
    return fd;
  }
  const sockaddr_in& address() const { return at_; }

 private:
  int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at_ = [] {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
  }();
  socklen_t length_ = sizeof at_;
};

}  // namespace ringroad::test
