// epoll_wait(2) tells in the order in which things became ready, whatever carries them: streams that are on a
// channel, pipes of which only the kernel knows, and instances inside of instances.
#include <sys/epoll.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/preload/scenarios/epoll_calls.h"

namespace ringroad::test {
namespace {

// One wait: what it tells, in its order.
void ordered(Actor& a, int epoll, int timeout_ms, int max = 8) {
  std::vector<epoll_event> events(static_cast<std::size_t>(max));
  const int n = ::epoll_wait(epoll, events.data(), max, timeout_ms);
  std::string line;
  for (int i = 0; i < n; ++i) line += " " + std::to_string(events[static_cast<std::size_t>(i)].data.u64);
  a.log("in this order:%s", line.c_str());
}

// A pipe of the server's own, and the two ways in which it is used.
struct Pipe {
  int ends[2] = {-1, -1};
  explicit Pipe(Actor& a) {
    if (a.is_server() && ::pipe(ends) != 0) a.log("no pipe");
  }
  ~Pipe() {
    if (ends[0] >= 0) ::close(ends[0]);
    if (ends[1] >= 0) ::close(ends[1]);
  }
  void put() const { [[maybe_unused]] const auto n = ::write(ends[1], "x", 1); }
  void take() const {
    char c;
    [[maybe_unused]] const auto n = ::read(ends[0], &c, 1);
  }
};

enum Place : std::uint64_t { kStream, kOther, kFirstPipe, kSecondPipe };

// Each wait of the server's comes when all is there, and behind one that found nothing.
void in_order(Actor& a, std::uint32_t how, bool nested) {
  const int fd = a.stream();
  const int other = a.stream();
  const Pipe before(a);
  const Pipe behind(a);
  const int epoll = make();
  const int inner = nested ? make() : epoll;
  a.server([&] {
    add(a, inner, fd, EPOLLIN | how, kStream);
    add(a, inner, other, EPOLLIN | how, kOther);
    if (nested) add(a, epoll, inner, EPOLLIN | how, kStream);
    add(a, epoll, before.ends[0], EPOLLIN | how, kFirstPipe);
    add(a, epoll, behind.ends[0], EPOLLIN | how, kSecondPipe);
  });
  const auto all_taken = [&] {
    ordered(a, epoll, kSoon);
    if (nested) ordered(a, inner, 0);
    a.recv(fd, 9, MSG_DONTWAIT);
    a.recv(other, 9, MSG_DONTWAIT);
    before.take();
    behind.take();
    if (nested) ordered(a, inner, 0);
    ordered(a, epoll, 0);
  };
  // Until the streams are on their channel, they are told as they change.
  for (int i = 0; i < 20; ++i) {
    for (const int stream : {fd, other}) {
      a.client([&] { a.send(stream, "?"); });
      a.server([&] { a.recv(stream, 9); });
    }
  }
  for (const int each : {inner, epoll, epoll}) {
    a.server([&] { ordered(a, each, 0); });
  }
  for (int round = 0; round < 3; ++round) {
    a.server([&] { ordered(a, epoll, 0); before.put(); });
    a.client([&] { a.send(fd, "1"); });
    a.client([&] { a.send(other, "2"); });
    a.server([&] { behind.put(); all_taken(); });
    // The other way round.
    a.server([&] { behind.put(); });
    a.client([&] { a.send(other, "1"); });
    a.client([&] { a.send(fd, "2"); });
    a.server([&] { before.put(); all_taken(); });
    // And the streams first.
    a.client([&] { a.send(fd, "1"); });
    a.server([&] { before.put(); });
    a.server([&] { behind.put(); all_taken(); });
  }
}

}  // namespace

SCENARIO(epoll_tells_in_the_order_of_arrival, kStaysOnChannel | kFromTheFirstByte) { in_order(a, 0, false); }

SCENARIO(epoll_tells_edges_in_the_order_of_arrival, kStaysOnChannel | kFromTheFirstByte) {
  in_order(a, EPOLLET, false);
}

SCENARIO(epoll_tells_of_instances_in_the_order_of_arrival, kStaysOnChannel | kFromTheFirstByte) {
  in_order(a, 0, true);
}

}  // namespace ringroad::test
