// How a Player asks what is ready: poll(2), select(2) and epoll(7).
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "tests/preload/programs/random_player.h"

namespace ringroad::test {

void Player::poll() {
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

void Player::select() {
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

void Player::control(End& end) {
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

void Player::wait() {
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

}  // namespace ringroad::test
