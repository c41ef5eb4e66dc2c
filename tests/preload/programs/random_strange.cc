#include "tests/preload/programs/random_strange.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <iterator>

#include "tests/preload/programs/random_strange_player.h"

namespace ringroad::test {

namespace {

constexpr int kLooksForEdges = 8;  // which may come a moment later where streams switch often

}  // namespace

StrangePlayer::StrangePlayer(int side, std::uint64_t seed, int to_peer, int from_peer,
                             const std::vector<long>& only)
    : Player(side, true, seed, to_peer, from_peer), seed_(seed), only_(only.begin(), only.end()) {
  looks_for_edges_ = kLooksForEdges;
  // Left out, see docs/compatibility.md: what is told of a number that is closed here and open in a child,
  // and by a receive that asks the kernel twice.
  takes_out_ = true;
  fills_past_a_reset_ = false;
}

void StrangePlayer::play(long count) {
  Player::play(count);
  for (turn_ = 0; turn_ < 2; ++turn_) release();
}

void StrangePlayer::step() {
  if (!only_.empty() && only_.count(number_) == 0) return;
  draw_ = Draw(seed_ * 1'000'003 + static_cast<std::uint64_t>(number_));
  elsewhere_ = Place::kHere;
  const int kind = draw_.below(100);
  const int detail = draw_.below(1000);
  if (kind < 55) elsewhere_ = drawn_place(detail);
  if (kind < 70) {
    ordinary();
  } else if (choose()) {
    strange(kind - 70);
  }
  elsewhere_ = Place::kHere;
  where_.clear();
}

Place StrangePlayer::drawn_place(int detail) {
  constexpr struct {
    int below;
    Place place;
  } kPlaces[] = {{120, Place::kThread},          {200, Place::kThreadThatExits},
                 {330, Place::kThreadThatExitsByNumber}, {420, Place::kSmallestStack},
                 {500, Place::kHandler},         {580, Place::kOtherStack},
                 {640, Place::kChild},           {780, Place::kRain},
                 {920, Place::kLimit},           {960, Place::kNumbersClosed},
                 {1000, Place::kNumbersTaken}};
  for (const auto& entry : kPlaces) {
    if (detail < entry.below) return entry.place;
  }
  return Place::kHere;
}

void StrangePlayer::ordinary() {
  // Drawn before the operation, which draws as much as it needs.
  limit_ = &drawn(limits());
  number_to_take_ = 30 + draw_.below(34);
  take_all_ = draw_.one_in(8);
  if (!choose()) return;
  operate();
  // A child must find unread bytes in the socket: docs/compatibility.md.
  if (elsewhere_ == Place::kChild) unsettle();
}

void StrangePlayer::unsettle() {
  for (Connection& c : connections_) {
    for (End& end : c.ends) end.dirty = true;
  }
}

bool StrangePlayer::may_leave_channels() const {
  return std::none_of(std::begin(connections_), std::end(connections_), [&](const Connection& c) {
    return c.ends[turn_].open() && !c.ends[1 - turn_].alive();
  });
}

void StrangePlayer::strange(int kind) {
  Connection& c = connections_[place_];
  End& end = c.ends[turn_];
  if (kind < 5) {
    bad_send(c);
  } else if (kind < 10) {
    bad_receive(end);
  } else if (kind < 15) {
    misuse(end);
  } else if (kind < 18) {
    interrupted(end);
  } else if (kind < 21) {
    jumped_out_of(end);
  } else if (kind < 25) {
    sleeper(c, end);
  } else if (kind < 27) {
    opened_mask(end);
  } else if (kind < 28) {
    helper();
  } else if (kind < 29) {
    keep_or_release();
  } else {
    flood(c);
  }
}

void StrangePlayer::bad_send(Connection& c) {
  const End& peer = c.ends[1 - turn_];
  if (peer.alive() && peer.shut_rd && peer.shut_wr) return;  // as in send()
  made(bad_sends());
}

void StrangePlayer::bad_receive(End& end) {
  if (!end.ready() && !end.nonblocking) return;
  if (draw_.one_in(40)) {
    if (may_leave_channels()) made(calls_for_the_kernel());
    end.dirty = true;
    return;
  }
  const long got = made(bad_receives());
  if (got > 0) end.unread -= static_cast<std::size_t>(got);
}

void StrangePlayer::misuse(End& end) {
  if (!end.ready() && !end.shut_wr) made(misuses());  // else there is more that a socket can be made to do
}

void StrangePlayer::flood(Connection& c) {
  const std::size_t chunk = 1 + static_cast<std::size_t>(draw_.below(60'000));
  End& end = c.ends[turn_];
  End& peer = c.ends[1 - turn_];
  if (end.shut_wr || end.reset || end.nonblocking || !peer.open() || peer.held || peer.shut_rd ||
      peer.shut_wr || peer.reset || peer.nonblocking) {
    return;
  }
  const long sent = turn([&] {
    const std::string bytes = patterned(0, chunk);
    long total = 0;
    ssize_t n;
    while ((n = ::send(fd(), bytes.data(), chunk, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0) total += n;
    const bool full = n == -1 && errno == EAGAIN;
    handle(SIGALRM, count_tick, 0);
    tick_every(kTickUs);
    while ((n = ::send(fd(), bytes.data(), chunk, MSG_NOSIGNAL)) > 0) total += n;
    const bool interrupted = n == -1 && errno == EINTR;
    tick_every(0);
    say(std::string("flood: ") + (full ? "full, " : "not full, ") +
        (interrupted ? "interrupted" : "goes on"));
    return total;
  });
  if (sent <= 0) return;
  const long all = sent + static_cast<long>(peer.unread);
  turn_ = 1 - turn_;
  copy_ = 0;
  peer.dirty = false;  // more is on its way than it knows of
  turn([&] {
    long total = 0;
    ssize_t n = 1;
    while (total < all && n > 0) {
      n = ::recv(fd(), received, std::min(sizeof received, static_cast<std::size_t>(all - total)), 0);
      if (n > 0) total += n;
    }
    say(std::string("the flood is ") + (total == all ? "all there" : "not all there: " + answer(n)));
    return 0L;
  });
  peer.unread = 0;
  end.dirty = peer.dirty = true;
}

long StrangePlayer::made(std::span<const Call> table) {
  const Call& call = drawn(table);
  return turn([&] {
    errno = 0;
    const long value = call.make(fd());
    say(std::string(call.name) + " = " + answer(value));
    return value;
  });
}

void lower_limits_at_the_start(std::uint64_t seed) {
  constexpr struct {
    __rlimit_resource resource;
    rlim_t to;
    bool hard;
  } kAtTheStart[] = {{RLIMIT_FSIZE, 0, true},       {RLIMIT_MEMLOCK, 0, true},  {RLIMIT_NOFILE, 64, false},
                     {RLIMIT_NOFILE, 64, true},     {RLIMIT_NOFILE, 256, true}, {RLIMIT_SIGPENDING, 0, true},
                     {RLIMIT_STACK, 256 * 1024, true}};
  Draw draw(seed ^ 0x5eed);
  if (draw.one_in(2)) return;
  const auto& chosen = kAtTheStart[draw.below(static_cast<int>(std::size(kAtTheStart)))];
  rlimit limit{};
  ::getrlimit(chosen.resource, &limit);
  limit.rlim_cur = chosen.to;
  if (chosen.hard) limit.rlim_max = chosen.to;
  ::setrlimit(chosen.resource, &limit);
}

std::unique_ptr<Player> strange_player(int side, std::uint64_t seed, int to_peer, int from_peer,
                                       const std::vector<long>& only) {
  return std::make_unique<StrangePlayer>(side, seed, to_peer, from_peer, only);
}

}  // namespace ringroad::test
