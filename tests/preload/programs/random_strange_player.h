// The Player that does what random_strange.h tells of.
#pragma once

#include <sys/epoll.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/preload/programs/random_calls.h"
#include "tests/preload/programs/random_player.h"
#include "tests/preload/programs/random_tools.h"

namespace ringroad::test {

constexpr int kTickUs = 1000;

// An epoll instance that has one number.
class Watched {
 public:
  explicit Watched(int fd) : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    epoll_event event{EPOLLIN, {}};
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  }
  ~Watched() { ::close(epoll_); }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  int epoll() const { return epoll_; }

 private:
  const int epoll_;
};

// Where an ordinary operation is done.
enum class Place {
  kHere, kThread, kThreadThatExits, kThreadThatExitsByNumber, kSmallestStack, kHandler, kOtherStack,
  kChild, kRain, kLimit, kNumbersClosed, kNumbersTaken,
};

class StrangePlayer : public Player {
 public:
  StrangePlayer(int side, std::uint64_t seed, int to_peer, int from_peer, const std::vector<long>& only);
  void play(long count) override;

 private:
  void step() override;
  static Place drawn_place(int detail);
  void ordinary();
  void unsettle();

  // ---- Where an operation is done

  long perform(const std::function<long()>& call) override;
  long in_a_thread(const std::function<long()>& call, Ending ending, bool smallest_stack, const char* where);
  long in_a_handler(const std::function<long()>& call, bool other_stack);
  long in_a_child(const std::function<long()>& call);

  // Left out: what is told of a stream that returns to TCP when its peer has closed, see
  // docs/compatibility.md.
  bool may_leave_channels() const;

  void settle_own();
  void end_of(pid_t child);
  long in_the_rain(const std::function<long()>& call);
  long under_a_limit(const std::function<long()>& call);

  // All that /proc/self/fd shows and that is not the program's. The library's own may say EBADF the second
  // time, and to dup2(2): docs/compatibility.md.
  long behind_closed_numbers(const std::function<long()>& call);

  // A file on a number that is free, or, seldom, on all that are another's: the library does without its own
  // then.
  long behind_taken_numbers(const std::function<long()>& call);

  static std::vector<int> all_numbers();
  std::set<int> own_numbers() const;

  // ---- Operations of their own

  void strange(int kind);
  template <typename T>
  const T& drawn(std::span<const T> table) {
    return table[static_cast<std::size_t>(draw_.below(static_cast<int>(table.size())))];
  }
  long made(std::span<const Call> table);
  void bad_send(Connection& c);
  void bad_receive(End& end);
  void misuse(End& end);

  // A call would sleep for ever.
  static bool would_sleep(const End& end) { return !end.ready() && !end.nonblocking; }

  const Wait& drawn_wait() { return drawn(waits()); }

  void interrupted(End& end);
  void jumped_out_of(End& end);
  static std::string jump_out(const Wait& wait, int at, int epoll, int tick, bool other_stack);

  // A thread sleeps in a call, and something happens: by the peer, by another thread, by a signal.
  void sleeper(Connection& c, End& end);

  // What is never ready, as a JVM ends a call of another thread: the number is made that file's, then a
  // signal.
  int marker();

  static long sleep_in(const Wait& wait, int at, int epoll, std::string& told_by);

  // A signal that is pending is let in by the wait's own mask.
  void opened_mask(End& end);

  // ---- Children

  void helper();

  // A child that has a copy of everything and does nothing, for some operations.
  void keep_or_release();

  void release();

  // Until there is no room, and a sender that waits for some is interrupted. Then the peer reads it all.
  void flood(Connection& c);

  const std::uint64_t seed_;
  const std::set<long> only_;
  Place elsewhere_ = Place::kHere;
  const Limit* limit_ = nullptr;
  int number_to_take_ = 0;
  bool take_all_ = false;
  bool keeps_[2] = {};  // either side
  pid_t keeper_ = -1;
  int keeper_ends_[2] = {-1, -1};
  int marker_ends_[2] = {-1, -1};
};

}  // namespace ringroad::test
