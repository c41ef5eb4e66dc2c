// message_program [MESSAGES [BYTES [STREAMS]]]: what a message costs a program, for callgrind. It
// sends to itself by send(2) and recv(2), all in this one thread, so that every instruction is
// counted and none waits: over one stream, or over so many in turns, whose receiver asks
// epoll_wait(2) which of them it is. tests/cost counts what is collected from one to the other.
#include <sys/epoll.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/preload/programs/loopback.h"

int main(int argc, char** argv) {
  using ringroad::test::fail;
  using ringroad::test::Loopback;
  const auto argument = [&](int i, long otherwise) {
    return argc > i ? std::atol(argv[i]) : otherwise;
  };
  const long messages = argument(1, 1000);
  const auto bytes = static_cast<std::size_t>(argument(2, 64));
  const auto many = static_cast<std::size_t>(argument(3, 0));
  ringroad::test::Listener listener;
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  std::vector<Loopback> streams(many > 0 ? many : 1);
  for (Loopback& stream : streams) {
    stream = listener.connect_to();
    epoll_event in{EPOLLIN, {.fd = stream.server}};
    if (many > 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, stream.server, &in) != 0) fail("epoll_ctl");
  }
  std::string buffer(bytes, 'x');
  for (long i = 0; i < messages; ++i) {
    const Loopback& stream = streams[static_cast<std::size_t>(i) % streams.size()];
    if (send(stream.client, buffer.data(), bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) {
      fail("send");
    }
    int from = stream.server;
    if (many > 0) {
      epoll_event event{};
      if (epoll_wait(epoll, &event, 1, -1) != 1) fail("epoll_wait");
      from = event.data.fd;
    }
    if (recv(from, buffer.data(), bytes, 0) != static_cast<ssize_t>(bytes)) fail("recv");
  }
  std::printf("%ld messages of %zu bytes\n", messages, bytes);
  return 0;
}
