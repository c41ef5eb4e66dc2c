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

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "tests/preload/actor.h"
#include "tests/preload/random_model.h"

namespace ringroad::test {

constexpr int kConnections = 3;
constexpr int kMostUnread = 16'000;
constexpr std::size_t kFileBytes = 65'536;
constexpr int kServer = 0;
using Clock = std::chrono::steady_clock;

inline std::string answer(long value) {
  return value == -1 ? std::string("-1 ") + strerrorname_np(errno) : std::to_string(value);
}

// Up to four pieces of `n` bytes at `base`.
struct Pieces {
  iovec iov[4];
  int count = 0;
};
inline Pieces cut(char* base, std::size_t n, int count) {
  Pieces out;
  const std::size_t each = n / static_cast<std::size_t>(count);
  for (int i = 0; i < count; ++i) {
    const std::size_t take = i + 1 == count ? n : each;
    out.iov[out.count++] = {base, take};
    base += take;
    n -= take;
  }
  return out;
}

class Player {
 public:
  Player(int side, bool switching, std::uint64_t seed, int to_peer, int from_peer)
      : side_(side), switching_(switching), draw_(seed), to_peer_(to_peer), from_peer_(from_peer) {
    for (int& epoll : epolls_) epoll = ::epoll_create1(EPOLL_CLOEXEC);
    const std::string bytes = patterned(0, kFileBytes);
    file_ = ::memfd_create("bytes", MFD_CLOEXEC);
    if (::write(file_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) lost();
    count_signal(SIGPIPE, true);
  }

  virtual ~Player() = default;
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  virtual void play(long count) {
    listen();
    for (number_ = 0; number_ < count; ++number_) step();
  }

 protected:
  // ---- Lock-step

  [[noreturn]] void lost() { ::_exit(3); }  // the other process is gone, and says why

  void tell(std::int64_t value) {
    if (::write(to_peer_, &value, sizeof value) != sizeof value) lost();
  }
  std::int64_t hear() {
    std::int64_t value;
    if (::read(from_peer_, &value, sizeof value) != sizeof value) lost();
    return value;
  }

  // Makes the call of an operation, in the process whose turn it is.
  virtual long perform(const std::function<long()>& call) { return call(); }

  // The side of the turn does `call`; both know what it returned.
  long turn(const std::function<long()>& call) {
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

  void say(const std::string& what) {
    const Connection& c = connections_[place_];
    const std::string line = std::to_string(number_) + (turn_ == kServer ? " S " : " C ") +
                             std::to_string(place_) + "." + std::to_string(c.made) + " " + where_ + what +
                             (signals_seen() > 0 ? " SIGPIPE" : "") + "\n";
    if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) lost();
  }

  // A handler that runs beside a call that does not wait may end it.
  static int again(const std::function<int()>& call) {
    int n;
    do {
      n = call();
    } while (n == -1 && errno == EINTR);
    return n;
  }

  // Until `done`, or two seconds are over. Others need the processor more than the wait does.
  bool until(const std::function<bool()>& done) {
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

  void settle(int place, const End& end) {
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
      say(std::to_string(place) + " does not settle: unread " + std::to_string(unread) + ", " + poll_names(now.revents) +
          ", expected " + std::to_string(end.unread) + (end.fin ? ", its end" : "") +
          (end.reset ? ", reset" : ""));
    }
  }

  // ---- Connections

  void listen() {
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

  int connect() {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = port_;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) say("connect " + answer(-1));
    return fd;
  }

  void open(Connection& c) {
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

  // ---- One operation

  virtual void step() {
    if (choose()) operate();
  }

  // Draws whose turn it is, and for what. False: there was a connection to be made, or there is nobody.
  bool choose() {
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

  void operate() {
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

  int fd() const { return connections_[place_].ends[side_].copies[static_cast<std::size_t>(copy_)].fd; }

  int size() {
    switch (draw_.below(10)) {
      case 0: return 0;
      case 1: return 1;
      case 2: return draw_.below(6000);
      case 3: case 4: case 5: return draw_.below(600);
      default: return 1 + draw_.below(20);
    }
  }

  void send(Connection& c) {
    // Left out: an end that is open and shut down both ways. The kernel's reset does not come.
    const End& peer = c.ends[1 - turn_];
    if (peer.alive() && peer.shut_rd && peer.shut_wr) {
      receive(c.ends[turn_]);
      return;
    }
    const int room = kMostUnread - static_cast<int>(c.ends[1 - turn_].unread);
    const int n = std::min(size(), std::max(room - 32, 0));
    const int way = draw_.below(6);
    const int pieces = 1 + draw_.below(4);
    const int offset = draw_.below(static_cast<int>(kFileBytes) / 2);
    const bool by_position = draw_.one_in(2);
    int flags = static_cast<int>(draw_.subset({MSG_DONTWAIT, MSG_NOSIGNAL}));
    // Bytes that are held back meet no reset.
    if (draw_.one_in(6) && peer.alive()) flags |= MSG_MORE;
    // What MSG_MORE holds back is on its way with the next.
    const int more = way != 0 && way != 2 && way != 4 && (flags & MSG_MORE) != 0 ? 1 + draw_.below(20) : 0;
    const long sent = turn([&] {
      long total = send_once(way, flags, n, pieces, offset, by_position);
      if (more > 0 && total >= 0) {
        const long rest = send_once(1, 0, more, 1, 0, false);
        if (rest > 0) total += rest;
      }
      return total;
    });
    if (sent > 0) c.sent(turn_, static_cast<std::size_t>(sent));
  }

  long send_once(int way, int flags, int count, int pieces, int offset, bool by_position) {
    const auto n = static_cast<std::size_t>(count);
    const int at = fd();
    std::string bytes = patterned(static_cast<std::uint64_t>(number_) * 131, n);
    Pieces cut_up = cut(bytes.data(), n, pieces);
    std::string call;
    long value = -1;
    const auto once = [&] {
      errno = 0;
      switch (way) {
        case 0:
          call = "write(";
          return value = ::write(at, bytes.data(), n);
        case 1:
          call = "send(";
          return value = ::send(at, bytes.data(), n, flags);
        case 2:
          call = "writev(" + std::to_string(pieces) + " of ";
          return value = ::writev(at, cut_up.iov, cut_up.count);
        case 3: {
          call = "sendmsg(" + std::to_string(pieces) + " of ";
          msghdr message{};
          message.msg_iov = cut_up.iov;
          message.msg_iovlen = static_cast<std::size_t>(cut_up.count);
          return value = ::sendmsg(at, &message, flags);
        }
        case 4: {
          off_t from = offset;
          if (!by_position) {
            call = "sendfile(from " + std::to_string(offset) + ", ";
            return value = ::sendfile(at, file_, &from, n);
          }
          ::lseek(file_, offset, SEEK_SET);
          value = ::sendfile(at, file_, nullptr, n);
          const int saved = errno;
          call = "sendfile(at " + std::to_string(::lseek(file_, 0, SEEK_CUR)) + ", ";
          errno = saved;
          return value;
        }
        default:
          call = "sendto(";
          return value = ::sendto(at, bytes.data(), n, flags, nullptr, 0);
      }
    };
    const bool flagged = way != 0 && way != 2 && way != 4;
    once();
    if (switching_ && value == -1 && errno == EAGAIN) {
      until([&] { return once() != -1 || errno != EAGAIN; });
    }
    say(call + std::to_string(n) + (flagged ? flag_names(flags) : "") + ") = " + answer(value));
    return value;
  }

  void receive(End& end) {
    int n = size();
    const int way = draw_.below(5);
    const int pieces = 1 + draw_.below(4);
    const bool flagged = way < 3;
    int flags = 0;
    if (draw_.one_in(2)) flags |= MSG_DONTWAIT;
    if (draw_.one_in(4)) flags |= MSG_PEEK;
    if (draw_.one_in(5)) flags |= MSG_WAITALL;
    if (draw_.one_in(8)) flags |= MSG_TRUNC;
    // PEEK with WAITALL takes the stream off its channel.
    const bool rarely = draw_.one_in(60) && switching_;
    if ((flags & MSG_PEEK) != 0 && !rarely) flags &= ~MSG_WAITALL;
    if (!flagged) flags = 0;
    // Never for ever.
    const bool waits = !end.nonblocking && (flags & MSG_DONTWAIT) == 0;
    if (waits && !end.ready()) flags |= MSG_DONTWAIT;
    if (waits && static_cast<std::size_t>(n) > end.unread && !end.ends()) flags &= ~MSG_WAITALL;
    if (!fills_past_a_reset_ && end.reset && static_cast<std::size_t>(n) > end.unread) flags &= ~MSG_WAITALL;
    const bool must_flag = flags != 0;
    const long got = turn([&] { return receive_once(must_flag && !flagged ? 0 : way, flags, n, pieces); });
    if (got > 0 && (flags & MSG_PEEK) == 0) end.unread -= static_cast<std::size_t>(got);
  }

  long receive_once(int way, int flags, int count, int pieces) {
    const auto n = static_cast<std::size_t>(count);
    std::string bytes(n + 1, '-');
    Pieces cut_up = cut(bytes.data(), n, pieces);
    std::string call;
    std::string more;
    long value;
    errno = 0;
    switch (way) {
      case 0:
        call = "recv(";
        value = ::recv(fd(), bytes.data(), n, flags);
        break;
      case 1: {
        call = "recvmsg(" + std::to_string(pieces) + " of ";
        msghdr message{};
        message.msg_iov = cut_up.iov;
        message.msg_iovlen = static_cast<std::size_t>(cut_up.count);
        value = ::recvmsg(fd(), &message, flags);
        if (value >= 0) more = " flags " + std::to_string(message.msg_flags);
        break;
      }
      case 2:
        call = "recvfrom(";
        value = ::recvfrom(fd(), bytes.data(), n, flags, nullptr, nullptr);
        break;
      case 3:
        call = "read(";
        value = ::read(fd(), bytes.data(), n);
        break;
      default:
        call = "readv(" + std::to_string(pieces) + " of ";
        value = ::readv(fd(), cut_up.iov, cut_up.count);
        break;
    }
    std::string shown = answer(value);
    if (value >= 0) shown += more + " " + quoted(std::string_view(bytes.data(), std::min(static_cast<std::size_t>(value), n)));
    say(call + std::to_string(n) + flag_names(flags) + ") = " + shown);
    return value;
  }

  // ---- Readiness

  void poll() {
    std::uint32_t masks[kConnections] = {};
    bool asked[kConnections] = {};
    for (int i = 0; i < kConnections; ++i) {
      masks[i] = draw_.subset({POLLIN, POLLOUT, POLLRDHUP, POLLPRI, POLLRDNORM, POLLWRNORM});
      asked[i] = connections_[i].ends[turn_].open() && !draw_.one_in(3);
    }
    const bool with_ppoll = draw_.one_in(2);
    polls_ = true;
    turn([&] {
      pollfd set[kConnections];
      int n = 0;
      const auto once = [&] {
        bool room = true;
        for (int i = 0; i < kConnections; ++i) {
          const End& end = connections_[i].ends[side_];
          set[i] = {asked[i] ? end.copies[0].fd : -1, static_cast<short>(masks[i]), -1};
        }
        const timespec none{0, 0};
        n = again([&] {
          return with_ppoll ? ::ppoll(set, kConnections, &none, nullptr) : ::poll(set, kConnections, 0);
        });
        for (const pollfd& p : set) room &= p.fd < 0 || (p.events & ~p.revents & (POLLOUT | POLLWRNORM)) == 0;
        return room;
      };
      if (!once() && switching_) until(once);
      std::string line = with_ppoll ? "ppoll" : "poll";
      for (int i = 0; i < kConnections; ++i) {
        if (asked[i]) {
          line += " " + std::to_string(i) + ":" + poll_names(set[i].events) + "->" + poll_names(set[i].revents);
        }
      }
      say(line + " = " + std::to_string(n));
      return 0L;
    });
    polls_ = false;
  }

  void select() {
    std::uint32_t asked[kConnections] = {};
    for (int i = 0; i < kConnections; ++i) asked[i] = draw_.subset({1, 2, 4});
    turn([&] {
      fd_set sets[3];
      int n = 0;
      const auto once = [&] {
        int top = 0;
        for (fd_set& set : sets) FD_ZERO(&set);
        bool room = true;
        for (int i = 0; i < kConnections; ++i) {
          const End& end = connections_[i].ends[side_];
          if (!end.open()) continue;
          for (int k = 0; k < 3; ++k) {
            if ((asked[i] >> k & 1) != 0) FD_SET(end.copies[0].fd, &sets[k]);
          }
          top = std::max(top, end.copies[0].fd + 1);
        }
        n = again([&] {
          timeval none{0, 0};
          return ::select(top, &sets[0], &sets[1], &sets[2], &none);
        });
        for (int i = 0; i < kConnections; ++i) {
          const End& end = connections_[i].ends[side_];
          room &= !end.open() || (asked[i] & 2) == 0 || FD_ISSET(end.copies[0].fd, &sets[1]);
        }
        return room;
      };
      if (!once() && switching_) until(once);
      std::string line = "select";
      for (int i = 0; i < kConnections; ++i) {
        const End& end = connections_[i].ends[side_];
        if (!end.open()) continue;
        line += " ";
        for (int k = 0; k < 3; ++k) {
          if ((asked[i] >> k & 1) != 0) line += FD_ISSET(end.copies[0].fd, &sets[k]) ? "RWE"[k] : '-';
        }
      }
      say(line + " = " + std::to_string(n));
      return 0L;
    });
  }

  // ---- epoll

  void control(End& end) {
    const int instance = draw_.below(kInstances);
    Copy& copy = end.copies[static_cast<std::size_t>(copy_)];
    const bool odd = draw_.one_in(12);  // what the kernel refuses
    const bool is_in = copy.in[instance] != odd;
    // A registration under a number that is closed by now can be had again with that number: which one a
    // duplicate gets is not always the lowest, see docs/compatibility.md.
    if (end.stale[instance] && !copy.in[instance]) return;
    const int op = !is_in ? EPOLL_CTL_ADD : draw_.below(3) != 0 ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
    std::uint32_t mask = draw_.subset({EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLPRI});
    if (draw_.one_in(2)) mask |= EPOLLET;
    const bool once = draw_.one_in(4);
    // One edge more, or one without room, would be all that such a one ever tells.
    if (once && !switching_) mask |= EPOLLONESHOT;
    if (once && switching_ && (mask & (EPOLLET | EPOLLOUT)) == 0) mask |= EPOLLONESHOT;
    const std::uint64_t label = static_cast<std::uint64_t>(number_);
    numbers_change_ = true;
    const long value = turn([&] {
      epoll_event event{};
      event.events = mask;
      event.data.u64 = label;
      const int result = ::epoll_ctl(epolls_[instance], op, fd(), &event);
      const char* name = op == EPOLL_CTL_ADD ? "add" : op == EPOLL_CTL_MOD ? "mod" : "del";
      std::string line = std::string(name) + " " + std::to_string(copy_) + " " + std::to_string(instance);
      const std::string shown = answer(result);
      if (op != EPOLL_CTL_DEL) {
        line += " " + poll_names(static_cast<int>(mask & 0xffff)) + ((mask & EPOLLET) != 0 ? "|ET" : "") +
                ((mask & EPOLLONESHOT) != 0 ? "|ONESHOT" : "");
      }
      say(line + " = " + shown);
      return static_cast<long>(result);
    });
    numbers_change_ = false;
    if (value == 0 && op != EPOLL_CTL_DEL && turn_ == side_) masks_[label] = mask;
    if (value == 0 && op != EPOLL_CTL_MOD) copy.in[instance] = op == EPOLL_CTL_ADD;
  }

  // As many waits as it takes for each that is ready to have been told, however few at a time: who
  // comes first is not the kernel's promise. A level is told again and again, an edge counts.
  void wait() {
    const int instance = draw_.below(kInstances);
    const int most = 1 + draw_.below(8);
    turn([&] {
      std::map<std::uint64_t, std::pair<std::uint32_t, int>> told;
      int rounds = 0;
      const auto more = [&] {
        epoll_event events[8];
        const int n = again([&] { return ::epoll_wait(epolls_[instance], events, most, 0); });
        for (int i = 0; i < n; ++i) {
          auto& [bits, times] = told[events[i].data.u64];
          bits |= events[i].events;
          ++times;
        }
        return n;
      };
      const auto enough = [&] {
        for (rounds = 0; rounds < 3 + 24 / most; ++rounds) {
          const int n = more();
          if (n <= 0 || (n < most && rounds > 0)) break;
        }
        return std::all_of(told.begin(), told.end(), [&](const auto& entry) {
          const std::uint32_t mask = masks_[entry.first];
          return (mask & EPOLLET) != 0 || (mask & EPOLLOUT & ~entry.second.first) == 0;
        });
      };
      if (!enough() && switching_) until(enough);
      for (int i = 0; i < looks_for_edges_ && told.empty(); ++i) {
        ::usleep(500);
        enough();
      }
      std::string line = "wait " + std::to_string(instance) + " for " + std::to_string(most) + ":";
      for (const auto& [label, event] : told) {
        const std::uint32_t mask = masks_[label];
        const std::string text = std::to_string(label) + "=" + poll_names(static_cast<int>(event.first));
        if ((mask & EPOLLET) == 0 && (mask & EPOLLONESHOT) == 0) {
          line += " " + text;
        } else if ((mask & EPOLLET) == 0 || !switching_) {
          line += " " + text + "*" + std::to_string(event.second);
        } else {
          line += " {" + text + "}";
        }
      }
      say(line);
      return 0L;
    });
  }

  // ---- The rest

  void ask(End&, const char* what, int (*question)(int, int&)) {
    turn([&] {
      int value = -1;
      const int result = question(fd(), value);
      say(std::string(what) + " = " + (result == 0 ? std::to_string(value) : answer(-1)));
      return 0L;
    });
  }

  void toggle(End& end) {
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

  void shutdown(Connection& c) {
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

  void duplicate(End& end) {
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

  void close(Connection& c) {
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

  // Closed numbers that stay registered are the ordinary operations' to try.
  void take_out(const End& end) {
    const Copy& copy = end.copies[static_cast<std::size_t>(copy_)];
    for (int i = 0; i < kInstances; ++i) {
      if (copy.in[i]) ::epoll_ctl(epolls_[i], EPOLL_CTL_DEL, copy.fd, nullptr);
    }
  }

  // The operation's number is no longer the end's.
  void lose(Connection& c, End& end) {
    for (int i = 0; i < kInstances; ++i) {
      end.stale[i] |= end.copies[static_cast<std::size_t>(copy_)].in[i];
    }
    end.copies.erase(end.copies.begin() + copy_);
    if (!end.alive()) c.closed(turn_);
  }

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
