#include "tests/preload/programs/random_player.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

namespace ringroad::test {

Player::Player(int side, bool switching, std::uint64_t seed, int to_peer, int from_peer)
    : side_(side), switching_(switching), draw_(seed), to_peer_(to_peer), from_peer_(from_peer) {
  for (int& epoll : epolls_) epoll = ::epoll_create1(EPOLL_CLOEXEC);
  const std::string bytes = patterned(0, kFileBytes);
  file_ = ::memfd_create("bytes", MFD_CLOEXEC);
  if (::write(file_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) lost();
  count_signal(SIGPIPE, true);
}

void Player::play(long count) {
  listen();
  for (number_ = 0; number_ < count; ++number_) step();
}

void Player::tell(std::int64_t value) {
  if (::write(to_peer_, &value, sizeof value) != sizeof value) lost();
}

std::int64_t Player::hear() {
  std::int64_t value;
  if (::read(from_peer_, &value, sizeof value) != sizeof value) lost();
  return value;
}

long Player::turn(const std::function<long()>& call) {
  long value;
  if (turn_ == side_) {
    for (Connection& c : connections_) settle(static_cast<int>(&c - connections_), c.ends[side_]);
    value = perform(call);
    tell(value);
  } else {
    value = hear();
  }
  for (Connection& c : connections_) c.ends[turn_].dirty = c.ends[turn_].await_error = false;
  return value;
}

void Player::say(const std::string& what) {
  const Connection& c = connections_[place_];
  const std::string line = std::to_string(number_) + (turn_ == kServer ? " S " : " C ") +
                           std::to_string(place_) + "." + std::to_string(c.made) + " " + where_ + what +
                           (signals_seen() > 0 ? " SIGPIPE" : "") + "\n";
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) lost();
}

int Player::again(const std::function<int()>& call) {
  int n;
  do {
    n = call();
  } while (n == -1 && errno == EINTR);
  return n;
}

bool Player::until(const std::function<bool()>& done) {
  if (done()) return true;
  const auto end = Clock::now() + std::chrono::seconds(2);
  for (int round = 0; Clock::now() < end; ++round) {
    if (round < 100) {
      ::sched_yield();
    } else {
      ::usleep(50);
    }
    if (done()) return true;
  }
  return false;
}

void Player::settle(int place, const End& end) {
  if (!end.dirty || !end.open()) return;
  const int fd = end.copies[0].fd;
  int unread = -1;
  pollfd now{};
  const bool settled = until([&] {
    now = {fd, POLLRDHUP, 0};
    ::ioctl(fd, FIONREAD, &unread);
    ::poll(&now, 1, 0);
    if (end.await_error) return (now.revents & POLLERR) != 0;
    return (end.reset || unread == static_cast<int>(end.unread)) &&
           (!end.fin || (now.revents & (POLLRDHUP | POLLHUP)) != 0);
  });
  if (!settled) {
    say(std::to_string(place) + " does not settle: unread " + std::to_string(unread) + ", " +
        poll_names(now.revents) + ", expected " + std::to_string(end.unread) + (end.fin ? ", its end" : "") +
        (end.reset ? ", reset" : ""));
  }
}

void Player::listen() {
  if (side_ != kServer) {
    port_ = static_cast<in_port_t>(hear());
    return;
  }
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  if (::bind(listener_, reinterpret_cast<sockaddr*>(&at), length) != 0 ||
      ::listen(listener_, 8) != 0 ||
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &length) != 0) {
    lost();
  }
  tell(at.sin_port);
}

int Player::connect() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = port_;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) say("connect " + answer(-1));
  return fd;
}

void Player::open(Connection& c) {
  const int made = c.made + 1;
  c = Connection{};
  c.made = made;
  int fd = -1;
  numbers_change_ = true;
  perform([&] {
    fd = side_ == kServer ? ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC) : connect();
    return 0L;
  });
  numbers_change_ = false;
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  for (int side = 0; side < 2; ++side) c.ends[side].copies = {{side == side_ ? fd : -1, {}}};
  if (turn_ == side_) say("connected");
  tell(0);
  hear();
}

void Player::step() {
  if (choose()) operate();
}

bool Player::choose() {
  place_ = draw_.below(kConnections);
  turn_ = draw_.below(2);
  Connection& c = connections_[place_];
  if (c.free()) {
    open(c);
    return false;
  }
  if (!c.ends[turn_].open()) turn_ = 1 - turn_;
  const auto copies = static_cast<int>(c.ends[turn_].copies.size());
  if (copies == 0) return false;
  copy_ = draw_.below(copies);
  return true;
}

void Player::operate() {
  Connection& c = connections_[place_];
  End& end = c.ends[turn_];
  const int kind = draw_.below(1000);
  const bool over = end.reset || !c.ends[1 - turn_].alive() || (end.fin && end.shut_wr);
  if (over && draw_.one_in(12)) {  // what little there is to see is soon seen
    close(c);
  } else if (kind < 240) {
    send(c);
  } else if (kind < 500) {
    receive(end);
  } else if (kind < 620) {
    poll();
  } else if (kind < 680) {
    select();
  } else if (kind < 780) {
    control(end);
  } else if (kind < 905) {
    wait();
  } else if (kind < 930) {
    ask(end, "FIONREAD", [](int fd, int& value) { return ::ioctl(fd, FIONREAD, &value); });
  } else if (kind < 945) {
    ask(end, "SO_ERROR", [](int fd, int& value) {
      socklen_t length = sizeof value;
      return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &length);
    });
  } else if (kind < 965) {
    toggle(end);
  } else if (kind < 975) {
    shutdown(c);
  } else if (kind < 988) {
    duplicate(end);
  } else {
    close(c);
  }
}

int Player::size() {
  switch (draw_.below(10)) {
    case 0: return 0;
    case 1: return 1;
    case 2: return draw_.below(6000);
    case 3: case 4: case 5: return draw_.below(600);
    default: return 1 + draw_.below(20);
  }
}

void Player::ask(End&, const char* what, int (*question)(int, int&)) {
  turn([&] {
    int value = -1;
    const int result = question(fd(), value);
    say(std::string(what) + " = " + (result == 0 ? std::to_string(value) : answer(-1)));
    return 0L;
  });
}

void Player::toggle(End& end) {
  const bool by_ioctl = draw_.one_in(2);
  const bool on = end.nonblocking = draw_.one_in(2);
  turn([&] {
    int value = on;
    const int flags = ::fcntl(fd(), F_GETFL);
    const int result = by_ioctl ? ::ioctl(fd(), FIONBIO, &value)
                                : ::fcntl(fd(), F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
    say(std::string(on ? "nonblocking = " : "blocking = ") + answer(result));
    return 0L;
  });
}

void Player::shutdown(Connection& c) {
  const int how = draw_.below(3) == 0 ? SHUT_RD : SHUT_WR;
  const long value = turn([&] {
    const int result = ::shutdown(fd(), how);
    say(std::string(how == SHUT_RD ? "shutdown(RD) = " : "shutdown(WR) = ") + answer(result));
    // The peer's kernel acknowledges within 40 ms, which is an edge.
    if (result == 0 && how == SHUT_WR) {
      until([&] {
        tcp_info info{};
        socklen_t length = sizeof info;
        ::getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &info, &length);
        return info.tcpi_state != TCP_FIN_WAIT1 && info.tcpi_state != TCP_LAST_ACK &&
               info.tcpi_state != TCP_CLOSING;
      });
    }
    return static_cast<long>(result);
  });
  if (value == 0) c.shut(turn_, how == SHUT_RD, how == SHUT_WR);
}

void Player::duplicate(End& end) {
  if (end.copies.size() == 3) return;
  numbers_change_ = true;
  const int to = static_cast<int>(turn([&] {
    const int made = ::dup(fd());
    say(std::string("dup ") + (made >= 0 ? "made" : answer(-1)));
    return static_cast<long>(made);
  }));
  numbers_change_ = false;
  if (to >= 0) end.copies.push_back({turn_ == side_ ? to : -1, {}});
}

void Player::close(Connection& c) {
  End& end = c.ends[turn_];
  numbers_change_ = true;
  turn([&] {
    if (takes_out_) take_out(end);
    say("close " + std::to_string(copy_) + " = " + answer(::close(fd())));
    return 0L;
  });
  numbers_change_ = false;
  lose(c, end);
}

void Player::take_out(const End& end) {
  const Copy& copy = end.copies[static_cast<std::size_t>(copy_)];
  for (int i = 0; i < kInstances; ++i) {
    if (copy.in[i]) ::epoll_ctl(epolls_[i], EPOLL_CTL_DEL, copy.fd, nullptr);
  }
}

void Player::lose(Connection& c, End& end) {
  for (int i = 0; i < kInstances; ++i) {
    end.stale[i] |= end.copies[static_cast<std::size_t>(copy_)].in[i];
  }
  end.copies.erase(end.copies.begin() + copy_);
  if (!end.alive()) c.closed(turn_);
}

}  // namespace ringroad::test
