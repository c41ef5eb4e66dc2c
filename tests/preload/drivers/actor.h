// What a scenario is written in. A scenario is one function that two processes run, a server and a
// client, in lock-step:
//
//   SCENARIO(echo, kStaysOnChannel) {
//     const int fd = a.stream();                      // both: one TCP connection over loopback
//     a.client([&] { a.send(fd, "ping"); });          // the client's turn, the server waits
//     a.server([&] { a.recv(fd, 16); });
//   }
//
// Every call on a socket goes through the Actor, which writes a line of the transcript: the call, its
// result, errno, the bytes. The same scenario run with and without the preloaded library must give
// the same transcript, so nothing that may differ between two runs of the kernel alone (numbers of
// descriptors, amounts of a partial send) may be logged.
//
// Thread rule: an Actor belongs to its process; threads made by thread() log into their own notes,
// which join the transcript when they are joined.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace ringroad::test {

class Actor;

enum Trait : unsigned {
  // Every byte of the program goes over the channel, if the connection starts on it.
  kStaysOnChannel = 1,
  // The connection starts on the channel and the kernel carries it in the end.
  kComesBack = 2,
  // A process of the scenario ends by itself: there is nobody to ask afterwards.
  kEndsItself = 4,
  // And goes through the library as it does: nothing of it is left in the runtime directory.
  kClearsAway = 8,
  // The rule's `spin` is long: a thread that waits polls.
  kPolls = 16,
  // Tells of what a stream loses in the moment when it changes its carrier.
  kFromTheFirstByte = 32,
};

struct Scenario {
  const char* name;
  unsigned traits;
  void (*run)(Actor& a);
};

std::vector<Scenario>& scenarios();

struct Registration {
  Registration(const char* name, unsigned traits, void (*run)(Actor&));
};

#define SCENARIO(name, traits)                                                             \
  static void scenario_##name(::ringroad::test::Actor& a);                                 \
  static const ::ringroad::test::Registration registration_##name(#name, traits,           \
                                                                  scenario_##name);        \
  static void scenario_##name(::ringroad::test::Actor& a)

// A byte for each offset of a long transfer, so that loss, repetition and exchange show.
inline char pattern(std::uint64_t offset) {
  return static_cast<char>((offset * 31 + (offset >> 8) * 7 + (offset >> 16)) & 0xff);
}
std::string patterned(std::uint64_t offset, std::size_t n);

// Until the thread, once it is known, sleeps in the kernel. False: that does not come.
bool wait_until_asleep(const std::atomic<pid_t>& tid);

class Thread {
 public:
  Thread() = default;
  Thread(Actor& actor, std::function<void()> body);
  // Until it sleeps in the kernel, with its body entered. Logs if that does not come.
  void wait_asleep();
  void signal(int signo);
  // Appends what it logged to the transcript.
  void join();

 private:
  struct Shared {
    std::atomic<pid_t> tid{0};
    std::string notes;
  };
  Actor* actor_ = nullptr;
  std::shared_ptr<Shared> shared_;
  std::unique_ptr<std::thread> thread_;
};

class Actor {
 public:
  // `log_fd` takes the transcript; the others are pipes to and from the other process.
  Actor(char side, int log_fd, int to_peer, int from_peer)
      : side_(side), log_fd_(log_fd), to_peer_(to_peer), from_peer_(from_peer) {}

  bool is_server() const { return side_ == 'S'; }
  bool is_client() const { return side_ == 'C'; }
  void log(const char* format, ...) __attribute__((format(printf, 2, 3)));

  // ---- Lock-step
  void server(const std::function<void()>& turn);
  void client(const std::function<void()>& turn);
  void both(const std::function<void()>& turn);
  void sync();

  // ---- Connections
  void meet(int family = AF_INET);   // both: the server listens, until the end; all know port()
  int stream(int family = AF_INET);  // both: meet(), once, and a connection
  int connect_blocking(int family = AF_INET);
  int accept_blocking();
  std::uint16_t port() const { return port_; }
  int listening() const { return listener_; }  // the server's listener
  sockaddr_storage address(int family, socklen_t& length) const;

  // ---- Logged calls: result, errno, bytes
  long result(const char* call, long value);  // errno as it stands, if value is -1
  ssize_t send(int fd, std::string_view bytes, int flags = 0);
  ssize_t write(int fd, std::string_view bytes);
  ssize_t recv(int fd, std::size_t n, int flags = 0);
  ssize_t read(int fd, std::size_t n);
  short poll(int fd, short events, int timeout_ms = 0);
  // Until `bits` are reported (at most two seconds), then as poll(). What a kernel on one host does
  // at once takes a channel a moment.
  short settle(int fd, short events, short bits);
  // A ring that is full, and that nobody reads, stays: else it would be left for TCP after a while.
  void keep_full_ring(int fd);
  // Until `bytes` can be read: on a network, what was sent in two calls arrives in two moments. Not logged.
  void settle_unread(int fd, int bytes);
  void poll_table(int fd, const char* phase);  // many sets of events, no timeout
  int shutdown(int fd, int how);
  int close(int fd);
  int error(int fd);       // SO_ERROR
  int unread(int fd);      // FIONREAD
  void set_nonblocking(int fd, bool on = true);
  void set_timeout(int fd, int option, int ms);
  // Runs `call` and says whether it took `ms`: neither less nor much more.
  void timed(int ms, const std::function<void()>& call);

  // ---- Bulk, logged as one line each
  bool send_pattern(int fd, std::uint64_t from, std::uint64_t n, std::size_t chunk);
  bool recv_pattern(int fd, std::uint64_t from, std::uint64_t n, std::size_t chunk);
  void drain_to_end(int fd);  // bytes until end of file or error

  // Ends the process' part in the transcript, without leaving the process.
  void finish();

 private:
  friend class Thread;
  int listen_somewhere(int family);
  void emit(const std::string& line);
  void received(const std::string& call, ssize_t n, const char* buffer);

  const char side_;
  const int log_fd_;
  const int to_peer_;
  const int from_peer_;
  bool alone_ = false;  // the other process is gone
  int listener_ = -1;
  std::uint16_t port_ = 0;
};

std::string poll_names(int events);
std::string flag_names(int flags);
std::string quoted(std::string_view bytes);
void count_signal(int signo, bool restart);  // installs a handler that counts
int signals_seen();

}  // namespace ringroad::test
