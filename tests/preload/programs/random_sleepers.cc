// Calls of StrangePlayer that sleep until something happens.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "tests/preload/programs/random_strange_player.h"

namespace ringroad::test {

void StrangePlayer::interrupted(End& end) {
  const Wait& wait = drawn_wait();
  if (!would_sleep(end)) return;
  turn([&] {
    const Watched watched(fd());
    handle(SIGALRM, count_tick, 0);
    tick_every(kTickUs);
    errno = 0;
    const long value = wait.make(fd(), watched.epoll());
    const int saved = errno;
    tick_every(0);
    errno = saved;
    say(std::string("interrupted ") + wait.name + " = " + answer(value));
    return 0L;
  });
}

void StrangePlayer::jumped_out_of(End& end) {
  const Wait& wait = drawn_wait();
  const int tick = wait.restarts ? 1 + draw_.below(3) : 1;
  const bool other_stack = draw_.one_in(3);
  if (!would_sleep(end)) return;
  turn([&] {
    const Watched watched(fd());
    static char memory[64 * 1024];
    stack_t stack{};
    stack.ss_sp = memory;
    stack.ss_size = sizeof memory;
    stack_t before{};
    if (other_stack) ::sigaltstack(&stack, &before);
    say(jump_out(wait, fd(), watched.epoll(), tick, other_stack));
    if (other_stack) ::sigaltstack(&before, nullptr);
    return 0L;
  });
}

std::string StrangePlayer::jump_out(const Wait& wait, int at, int epoll, int tick, bool other_stack) {
  ticks = 0;
  ticks_to_jump = tick;
  handle(SIGALRM, jump_at_a_tick, SA_RESTART | (other_stack ? SA_ONSTACK : 0));
  long value = 0;
  if (sigsetjmp(outside_of_call, 1) == 0) {
    tick_every(kTickUs);
    value = wait.make(at, epoll);
    const int saved = errno;
    tick_every(0);
    errno = saved;
    return std::string("not jumped out of ") + wait.name + " = " + answer(value);
  }
  tick_every(0);
  return std::string("jumped out of ") + wait.name + " at " + std::to_string(tick);
}

void StrangePlayer::sleeper(Connection& c, End& end) {
  enum { kBytesCome, kPeerShuts, kPeerCloses, kOwnShutdown, kSignal, kJump, kOtherFile, kHappenings };
  const Wait& wait = drawn_wait();
  int happening = draw_.below(kHappenings);
  const auto n = static_cast<std::size_t>(draw_.below(30)) + kAll;
  const auto ending = static_cast<Ending>(draw_.below(3));
  const bool small = draw_.one_in(3);
  if (!would_sleep(end)) return;
  const int own = turn_;
  const int other = 1 - turn_;
  End& peer = c.ends[other];
  const bool peer_can = peer.open() && !peer.shut_wr && !peer.reset && !(end.shut_rd && end.shut_wr);
  if (happening <= kPeerCloses && !peer_can) happening = kSignal;
  if (happening == kPeerCloses && (peer.copies.size() > 1 || peer.held)) happening = kPeerShuts;
  Errand errand;
  std::unique_ptr<Watched> watched;
  std::string told_by;
  turn([&] {
    watched = std::make_unique<Watched>(fd());
    handle(SIGUSR2, happening == kJump ? jump_at_a_tick : count_tick, 0);
    const int at = fd();
    const int epoll = watched->epoll();
    errand.ending = ending;
    errand.call = [&, at, epoll] { return sleep_in(wait, at, epoll, told_by); };
    start(errand, small);
    if (!wait_until_asleep(errand.tid)) say("does not sleep");
    return 0L;
  });
  const int copy = copy_;
  if (happening <= kPeerCloses) {
    turn_ = other;
    copy_ = 0;
    const long done = turn([&] {
      if (happening == kBytesCome) return static_cast<long>(::send(fd(), kBytes, n, MSG_NOSIGNAL));
      if (happening == kPeerShuts) return static_cast<long>(::shutdown(fd(), SHUT_WR));
      return static_cast<long>(::close(fd()));
    });
    if (happening == kBytesCome && done > 0) c.sent(other, static_cast<std::size_t>(done));
    if (happening == kPeerShuts) c.shut(other, false, true);
    if (happening == kPeerCloses) lose(c, peer);
    turn_ = own;
    copy_ = copy;
  }
  end.dirty = false;  // it may be the thread that takes what has come
  const long value = turn([&] {
    const int at = fd();
    if (happening == kOwnShutdown) ::shutdown(at, SHUT_RD);
    if (happening == kOtherFile) take_out(end);
    if (happening == kOtherFile) ::dup2(marker(), at);
    ticks = 0;
    ticks_to_jump = 1;
    if (happening == kSignal || happening == kJump || happening == kOtherFile) {
      ::pthread_kill(errand.thread, SIGUSR2);
    }
    ::pthread_join(errand.thread, nullptr);
    static constexpr const char* kNames[] = {"bytes", "the peer's shutdown", "the peer's close", "a shutdown",
                                             "a signal", "a jump", "another file"};
    say(std::string(wait.name) + " until " + kNames[happening] + " = " + told_by);
    if (happening == kOtherFile) ::close(at);
    watched.reset();
    return errand.value;
  });
  if (wait.takes && value > 0) end.unread -= static_cast<std::size_t>(value);
  if (happening == kOwnShutdown) c.shut(own, true, false);
  if (happening == kOtherFile) lose(c, end);
  end.dirty = true;
}

int StrangePlayer::marker() {
  if (marker_ends_[0] < 0 && ::pipe2(marker_ends_, O_CLOEXEC) != 0) lost();
  return marker_ends_[0];
}

long StrangePlayer::sleep_in(const Wait& wait, int at, int epoll, std::string& told_by) {
  if (sigsetjmp(outside_of_call, 1) != 0) {
    told_by = "jumped out of";
    return 0;
  }
  errno = 0;
  const long value = wait.make(at, epoll);
  told_by = answer(value);
  return value;
}

void StrangePlayer::opened_mask(End& end) {
  const int way = draw_.below(3);
  turn([&] {
    const Watched watched(fd());
    sigset_t blocked;
    sigset_t before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    handle(SIGUSR2, count_tick, 0);
    ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
    ticks = 0;
    ::raise(SIGUSR2);
    const timespec while_{2, 0};
    errno = 0;
    int n;
    if (way == 0) {
      pollfd one{fd(), POLLIN, 0};
      n = ::ppoll(&one, 1, &while_, &before);
    } else if (way == 1) {
      fd_set set;
      FD_ZERO(&set);
      FD_SET(fd(), &set);
      n = ::pselect(fd() + 1, &set, nullptr, nullptr, &while_, &before);
    } else {
      epoll_event event;
      n = ::epoll_pwait(watched.epoll(), &event, 1, 2000, &before);
    }
    const std::string shown = answer(n);
    const int within = ticks;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    say("a pending signal in wait " + std::to_string(way) + " = " + shown + ", " + std::to_string(within) +
        " of " + std::to_string(ticks) + " within");
    return 0L;
  });
  static_cast<void>(end);
}

}  // namespace ringroad::test
