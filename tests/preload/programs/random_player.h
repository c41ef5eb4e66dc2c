// One of the two processes of random_operations, and the operations that ordinary programs make.
//
// The processes take turns: one operates, tells the other what came of it by a pipe, and both go on
// with the same model (random_model.h). An end that the other has done something to waits, before it
// operates, until that has arrived. So two runs of the kernel alone print the same, and a run with the
// library preloaded has to. At most kMostUnread bytes are under way, so that nothing is ever full.
//
// Thread rule: none of it is shared between threads, but for a call that perform() has another thread
// make while its own waits for that.
#pragma once

#include <netinet/in.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/programs/random_model.h"

namespace ringroad::test {

constexpr int kConnections = 3;
constexpr int kMostUnread = 16'000;
constexpr std::size_t kFileBytes = 65'536;
constexpr int kServer = 0;
using Clock = std::chrono::steady_clock;

inline std::string answer(long value) {
  return value == -1 ? std::string("-1 ") + strerrorname_np(errno) : std::to_string(value);
}

class Player {
 public:
  Player(int side, bool switching, std::uint64_t seed, int to_peer, int from_peer);
  virtual ~Player() = default;
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;
  virtual void play(long count);

 protected:
  // ---- Lock-step

  [[noreturn]] void lost() { ::_exit(3); }  // the other process is gone, and says why

  void tell(std::int64_t value);
  std::int64_t hear();

  // Makes the call of an operation, in the process whose turn it is.
  virtual long perform(const std::function<long()>& call) { return call(); }

  // The side of the turn does `call`; both know what it returned.
  long turn(const std::function<long()>& call);

  void say(const std::string& what);

  // A handler that runs beside a call that does not wait may end it.
  static int again(const std::function<int()>& call);

  // Until `done`, or two seconds are over. Others need the processor more than the wait does.
  bool until(const std::function<bool()>& done);

  void settle(int place, const End& end);

  // ---- Connections

  void listen();
  int connect();
  void open(Connection& c);

  // ---- One operation

  virtual void step();

  // Draws whose turn it is, and for what. False: there was a connection to be made, or there is nobody.
  bool choose();

  void operate();
  int fd() const { return connections_[place_].ends[side_].copies[static_cast<std::size_t>(copy_)].fd; }

  int size();
  void send(Connection& c);
  long send_once(int way, int flags, int count, int pieces, int offset, bool by_position);
  void receive(End& end);
  long receive_once(int way, int flags, int count, int pieces);

  // ---- Readiness

  void poll();
  void select();

  // ---- epoll

  void control(End& end);

  // As many waits as it takes for each that is ready to have been told, however few at a time: a caller that
  // comes first is not the kernel's promise. A level is told again and again, an edge counts.
  void wait();

  // ---- The rest

  void ask(End&, const char* what, int (*question)(int, int&));
  void toggle(End& end);
  void shutdown(Connection& c);
  void duplicate(End& end);
  void close(Connection& c);

  // Closed numbers that stay registered are the ordinary operations' to try.
  void take_out(const End& end);

  // The operation's number is no longer the end's.
  void lose(Connection& c, End& end);

  const int side_;
  const bool switching_;
  Draw draw_;
  const int to_peer_;
  const int from_peer_;
  int epolls_[kInstances];
  int file_ = -1;
  int listener_ = -1;
  in_port_t port_ = 0;
  long number_ = 0;
  int place_ = 0;  // the operation's connection,
  int turn_ = 0;   // whose it is,
  int copy_ = 0;   // by which number
  bool takes_out_ = false;  // what is closed, of the epoll instances
  bool fills_past_a_reset_ = true;
  int looks_for_edges_ = 0;      // after a wait that has told nothing
  bool numbers_change_ = false;  // or registrations, by the operation: no child can do it then
  bool polls_ = false;           // the operation, all connections at once
  std::string where_;  // it is done, for the transcript
  Connection connections_[kConnections];
  std::map<std::uint64_t, std::uint32_t> masks_;  // by what epoll_data says
};

}  // namespace ringroad::test
