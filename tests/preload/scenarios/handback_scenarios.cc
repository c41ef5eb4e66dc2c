// A connection changes hands in every way that there is, with bytes under way in both directions: its last
// holder gets what nobody had read, once, and goes on where the other stopped.
//
//   peer P ════════════ holder H ──▶ heir       the heir reads H's unread bytes from the kernel
//
// Each scenario is one way, in one role of the holder, over all that the peer may be doing meanwhile.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/duplex.h"
#include "tests/preload/scenarios/handback_ways.h"

namespace ringroad::test {
namespace {

enum class Unread { kNone, kSome, kFull };
// While the connection changes hands.
enum class Peer { kIdle, kActive, kHalfCloses, kCloses, kStopped };

constexpr std::uint64_t kTotal = 700'000;  // more than two rings
constexpr std::uint64_t kSome = 1000;
constexpr std::uint64_t kMuch = 150'000;  // less than one ring
constexpr std::uint64_t kTaken = 300;     // of that by the holder
constexpr useconds_t kIdleUs = 30'000;
constexpr useconds_t kStoppedUs = 100'000;

// ---- What goes before, and the peer

std::uint64_t send_until_full(int fd, std::uint64_t total) {
  std::uint64_t sent = 0;
  while (sent < total) {
    const std::string bytes =
        patterned(sent, static_cast<std::size_t>(std::min<std::uint64_t>(50'000, total - sent)));
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n <= 0) break;
    sent += static_cast<std::uint64_t>(n);
  }
  return sent;
}

bool send_all(int fd, const std::string& bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

std::uint64_t take(int fd, std::uint64_t n) {
  std::string bytes(n, '\0');
  const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), MSG_WAITALL);
  return got == static_cast<ssize_t>(n) && bytes == patterned(0, n) ? n : 0;
}

// Enough for a rule that wants to see some messages first.
void warm_up(Actor& a, int fd) {
  char byte = 'w';
  for (int i = 0; i < 12; ++i) {
    const bool right = a.is_client() ? ::send(fd, &byte, 1, 0) == 1 && ::recv(fd, &byte, 1, 0) == 1
                                     : ::recv(fd, &byte, 1, 0) == 1 && ::send(fd, &byte, 1, 0) == 1;
    if (!right) a.log("no warming up");
  }
}

bool ends_first(Peer peer) { return peer == Peer::kHalfCloses || peer == Peer::kCloses; }

void play_peer(Actor& a, int fd, Unread unread, Peer peer) {
  const pid_t own = ::getpid();
  if (!send_all(fd, std::string(reinterpret_cast<const char*>(&own), sizeof own))) a.log("no number");
  Duplex all;
  all.in = all.out = fd;
  if (ends_first(peer)) {
    all.total = unread == Unread::kNone ? kTaken : unread == Unread::kSome ? kSome : kMuch;
    if (!send_all(fd, patterned(0, all.total) + trailer(all.total))) a.log("cannot send");
    all.out = -1;
    if (peer == Peer::kCloses) ::close(fd);
    if (peer == Peer::kHalfCloses) ::shutdown(fd, SHUT_WR);
  } else {
    all.total = kTotal;
    all.sent = send_until_full(fd, unread == Unread::kNone   ? kTaken
                                   : unread == Unread::kSome ? kSome
                                                             : kTotal);
  }
  a.sync();  // the holder has what it has, and hands over
  if (peer == Peer::kIdle) ::usleep(kIdleUs);
  if (peer != Peer::kCloses) {
    a.log("the peer: %s", all.run().c_str());
    ::close(fd);
  }
  a.sync();
}

void play_holder(Held& h, Unread unread, Peer peer, Way way) {
  Actor& a = h.a;
  pid_t other = 0;
  if (::recv(h.fd, &other, sizeof other, MSG_WAITALL) != sizeof other) a.log("no number");
  h.received = take(h.fd, kTaken);
  h.silent = peer == Peer::kCloses;
  h.total = h.silent ? 0 : kTotal;
  h.more = unread != Unread::kNone;
  if (unread == Unread::kFull) h.sent = send_until_full(h.fd, h.total);
  if (unread == Unread::kSome) h.sent = send_until_full(h.fd, std::min(h.total, kSome));
  a.sync();
  std::thread waker;
  if (peer == Peer::kStopped) {
    ::kill(other, SIGSTOP);
    waker = std::thread([other] {
      ::usleep(kStoppedUs);
      ::kill(other, SIGCONT);
    });
  }
  way(h);
  if (waker.joinable()) waker.join();
  a.sync();
}

struct Case {
  Unread unread;
  Peer peer;
};
constexpr Case kCases[] = {
    {Unread::kNone, Peer::kActive},     {Unread::kSome, Peer::kActive},
    {Unread::kFull, Peer::kActive},     {Unread::kNone, Peer::kIdle},
    {Unread::kSome, Peer::kIdle},       {Unread::kFull, Peer::kIdle},
    {Unread::kNone, Peer::kHalfCloses}, {Unread::kSome, Peer::kHalfCloses},
    {Unread::kFull, Peer::kHalfCloses}, {Unread::kSome, Peer::kStopped},
    {Unread::kFull, Peer::kStopped},    {Unread::kNone, Peer::kCloses},
    {Unread::kSome, Peer::kCloses},     {Unread::kFull, Peer::kCloses},
};

const char* name_of(Unread unread) {
  return unread == Unread::kNone ? "nothing unread" : unread == Unread::kSome ? "some unread" : "all full";
}
const char* name_of(Peer peer) {
  switch (peer) {
    case Peer::kIdle:
      return "idle";
    case Peer::kActive:
      return "active";
    case Peer::kHalfCloses:
      return "has ended its output";
    case Peer::kCloses:
      return "has closed";
    case Peer::kStopped:
      return "is stopped";
  }
  return "?";
}

enum class When { kBeforeTheClose, kAfterIt };

void hand_over(Actor& a, char holder, Way way, When when) {
  for (const Case& c : kCases) {
    if ((c.peer == Peer::kCloses) != (when == When::kAfterIt)) continue;
    const int fd = a.stream();
    a.log("-- %s, the peer %s", name_of(c.unread), name_of(c.peer));
    warm_up(a, fd);
    if (a.is_server() == (holder == 'S')) {
      Held held{a, fd};
      play_holder(held, c.unread, c.peer, way);
    } else {
      play_peer(a, fd, c.unread, c.peer);
    }
  }
}

// ---- Where the library cannot give the heir all: never a wrong byte, never an end that is none

// The peer is a process of its own, which is killed with its bytes unread.
void from_a_killed_peer(Actor& a, char holder, Way way) {
  a.meet();
  if (a.is_server() == (holder == 'S')) {
    const int fd = a.stream();
    warm_up(a, fd);
    Held held{a, fd};
    held.silent = held.reset_will_do = true;
    held.received = take(fd, kTaken);
    a.sync();  // it is dead
    way(held);
    a.sync();
    return;
  }
  int ready[2];
  if (::pipe2(ready, O_CLOEXEC) != 0) return;
  const pid_t peer = ::fork();
  if (peer == 0) {
    const int fd = a.stream();
    warm_up(a, fd);
    const bool sent = send_all(fd, patterned(0, kMuch) + trailer(kMuch)) && ::write(ready[1], "", 1) == 1;
    ::pause();
    ::_exit(sent ? 0 : 1);
  }
  char byte;
  if (::read(ready[0], &byte, 1) != 1) a.log("the peer is not ready");
  ::usleep(kIdleUs);  // the holder takes its part
  ::kill(peer, SIGKILL);
  ::waitpid(peer, nullptr, 0);
  a.sync();
  a.sync();
  ::close(ready[0]);
  ::close(ready[1]);
}

// The peer is stopped for longer than the library waits for it.
void from_a_stopped_peer(Actor& a, char holder, Way way, useconds_t stopped_us) {
  const int fd = a.stream();
  warm_up(a, fd);
  if (a.is_server() != (holder == 'S')) {
    const pid_t own = ::getpid();
    if (!send_all(fd, std::string(reinterpret_cast<const char*>(&own), sizeof own)) ||
        !send_all(fd, patterned(0, kMuch) + trailer(kMuch))) {
      a.log("cannot send");
    }
    a.sync();
    a.sync();
    ::close(fd);
    return;
  }
  Held held{a, fd};
  held.silent = held.reset_will_do = true;
  pid_t other = 0;
  if (::recv(fd, &other, sizeof other, MSG_WAITALL) != sizeof other) a.log("no number");
  held.received = take(fd, kTaken);
  a.sync();
  ::kill(other, SIGSTOP);
  std::thread waker([other, stopped_us] {
    ::usleep(stopped_us);
    ::kill(other, SIGCONT);
  });
  // The end comes with the peer's close, behind the second sync().
  std::thread end([&a, &waker] {
    waker.join();
    a.sync();
  });
  way(held);
  end.join();
}

constexpr useconds_t kLongerThanAForkUs = 1'300'000;
constexpr useconds_t kLongerThanTheRestUs = 2'300'000;

void hand_over_what_is_lost(Actor& a, char holder) {
  for (const Way way : {fork_and_serve, fork_dup2_and_exec, vfork_dup2_and_exec,
                        spawn_with_file_actions, pass_by_sendmsg}) {
    from_a_killed_peer(a, holder, way);
  }
}

void hand_over_what_is_stuck(Actor& a, char holder) {
  from_a_stopped_peer(a, holder, fork_and_serve, kLongerThanAForkUs);
  from_a_stopped_peer(a, holder, fork_dup2_and_exec, kLongerThanAForkUs);
  from_a_stopped_peer(a, holder, pass_by_sendmsg, kLongerThanTheRestUs);
}

#define HAND_OVER(way)                                                  \
  SCENARIO(server_hands_over_##way, kComesBack) {                       \
    hand_over(a, 'S', way, When::kBeforeTheClose);                      \
  }                                                                     \
  SCENARIO(client_hands_over_##way, kComesBack) {                       \
    hand_over(a, 'C', way, When::kBeforeTheClose);                      \
  }                                                                     \
  SCENARIO(server_hands_over_a_closed_one_by_##way, kComesBack) {       \
    hand_over(a, 'S', way, When::kAfterIt);                             \
  }                                                                     \
  SCENARIO(client_hands_over_a_closed_one_by_##way, kComesBack) {       \
    hand_over(a, 'C', way, When::kAfterIt);                             \
  }

}  // namespace

SCENARIO(server_hands_over_from_a_killed_peer, kComesBack) { hand_over_what_is_lost(a, 'S'); }
SCENARIO(client_hands_over_from_a_killed_peer, kComesBack) { hand_over_what_is_lost(a, 'C'); }
// A server that makes a snapshot every minute, and a client that is stopped for hours.
SCENARIO(a_stopped_peer_keeps_one_fork_waiting_and_no_more, kComesBack) {
  const int fd = a.stream();
  warm_up(a, fd);
  if (a.is_client()) {
    const pid_t own = ::getpid();
    send_all(fd, std::string(reinterpret_cast<const char*>(&own), sizeof own));
    a.recv(fd, 10);
    return;
  }
  pid_t other = 0;
  if (::recv(fd, &other, sizeof other, MSG_WAITALL) != sizeof other) a.log("no number");
  ::kill(other, SIGSTOP);
  std::int64_t least_ms = 1'000'000;
  for (int i = 0; i < 4; ++i) {
    const auto began = std::chrono::steady_clock::now();
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    ::waitpid(child, nullptr, 0);
    const auto took = std::chrono::steady_clock::now() - began;
    least_ms =
        std::min<std::int64_t>(least_ms, std::chrono::duration_cast<std::chrono::milliseconds>(took).count());
  }
  a.log("each fork waits: %d", least_ms > 500);
  ::kill(other, SIGCONT);
  a.send(fd, "go on");
}

SCENARIO(server_hands_over_from_a_stopped_peer, kComesBack) { hand_over_what_is_stuck(a, 'S'); }
SCENARIO(client_hands_over_from_a_stopped_peer, kComesBack) { hand_over_what_is_stuck(a, 'C'); }

HAND_OVER(fork_and_serve)
HAND_OVER(fork_and_the_child_reads)
HAND_OVER(fork_and_the_child_writes)
HAND_OVER(fork_and_the_parent_goes_on)
HAND_OVER(fork_twice)
HAND_OVER(become_a_daemon)
HAND_OVER(fork_dup2_and_exec)
HAND_OVER(fork_use_and_exec)
HAND_OVER(fork_and_exec_a_shell)
HAND_OVER(vfork_dup2_and_exec)
HAND_OVER(spawn_with_file_actions)
HAND_OVER(spawn_and_inherit)
HAND_OVER(run_by_system)
HAND_OVER(run_by_popen)
HAND_OVER(pass_by_sendmsg)
HAND_OVER(pass_by_sendmmsg)

}  // namespace ringroad::test
