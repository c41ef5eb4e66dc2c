// Sleeping until a stream is ready, on its channel or back on TCP.
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/net/tcp_counters.h"
#include "rsocket-core/stream/stream_readiness.h"
#include "rsocket-core/stream/thread_edges.h"

namespace ringroad {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kDeafSliceNs = 5'000'000;
constexpr time_t kLongS = 1'000'000'000;
constexpr std::int64_t kLookAgainNs = 200'000;  // where nobody can wake us
constexpr std::int64_t kAskAgainNs = 50'000'000;  // after a refusal, while connect() waits for a channel
constexpr std::int64_t kRefillPauseNs = 300'000'000;  // longer than TCP waits before it sends again

// Servers install handlers for these without SA_RESTART. A thread that sleeps commits no fault.
bool is_fault(int signo) noexcept {
  return signo == SIGSEGV || signo == SIGBUS || signo == SIGFPE || signo == SIGILL ||
         signo == SIGTRAP || signo == SIGSYS || signo == SIGABRT;
}

// For handlers that are not wrapped: the kernel restarts recv(2) after those that were installed
// with SA_RESTART and not after others, but ppoll(2) does not say which handler ran. So: restart if
// every handler that this thread can have run, faults aside, asks for it.
bool every_handler_restarts() noexcept {
  sigset_t blocked;
  if (pthread_sigmask(SIG_SETMASK, nullptr, &blocked) != 0) return false;
  for (int signo = 1; signo < _NSIG; ++signo) {
    struct sigaction action {};
    if (is_fault(signo) || sigismember(&blocked, signo) == 1 ||
        sigaction(signo, nullptr, &action) != 0) {
      continue;
    }
    const bool handled = (action.sa_flags & SA_SIGINFO) != 0 ||
                         (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
    if (handled && (action.sa_flags & SA_RESTART) == 0) return false;
  }
  return true;
}

// What is left until the deadline; null: no end. REQUIRES: `timeout` outlives the answer.
timespec* timeout_until(std::int64_t deadline_ns, timespec& timeout) noexcept {
  if (deadline_ns == kForever) return nullptr;
  const std::int64_t left = std::max<std::int64_t>(0, deadline_ns - sys::now_ns());
  timeout = {left / 1'000'000'000, left % 1'000'000'000};
  return &timeout;
}

// Whether a handler has run as the stretch ended: the kernel would have it end the sleep.
bool ended_by_put_off() noexcept {
  if (!signals::came_since_begin()) return false;
  errno = EINTR;
  return true;
}

// Sleeps until a descriptor is ready or the deadline is over, or has a handler run since the program's call
// began to wait: one that comes with a wake-up of the library's own ends the next sleep. As ppoll(2).
int sleep_by(SleepCall way, pollfd* fds, nfds_t count, std::int64_t deadline_ns) noexcept {
  const signals::RunHandlers handlers_run;
  timespec timeout;
  if (ended_by_put_off()) return -1;
  return way(fds, count, timeout_until(deadline_ns, timeout), nullptr);
}
int held(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t*) noexcept {
  return held_sleep(fds, count, timeout);
}
int cancellable(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t*) noexcept {
  return cancellable_sleep(fds, count, timeout);
}

// A sleep for the library's own ends, inside a call of the program's: handlers end it, and the call's next
// sleep too. ECANCELED if a handler ends the thread.
int sleep_on(pollfd* fds, nfds_t count, std::int64_t deadline_ns) noexcept {
  const unsigned ran = signals::thread_state.ran;
  signals::begin_wait();
  const int n = sleep_by(held, fds, count, deadline_ns);
  signals::thread_state.ran |= ran;
  return n;
}

// The same, where there is nothing to be told but that the thread ends.
bool goes_on_after(int slept) noexcept { return slept >= 0 || errno != ECANCELED; }

}  // namespace

int StreamReadiness::after_handler() noexcept {
  const unsigned ran = signals::thread_state.ran;
  const bool anew = ran == signals::kNone ? every_handler_restarts() : ran == signals::kRestarting;
  return anew ? ERESTART : EINTR;
}

int StreamReadiness::sleep_as_program(pollfd* fds, nfds_t count, std::int64_t deadline_ns) noexcept {
  return sleep_by(cancellable, fds, count, deadline_ns);
}

int StreamReadiness::sleep_on_word(ThreadWaiter& waiter, short events, std::int64_t deadline_ns, Sleep kind,
                                   bool ends_by_signal) noexcept {
  if (!arm_word(events, waiter.on)) return kNoWord;
  if (!waiters_.sleeps_on_word(waiter)) {
    clear_wake(waiter.wake_fd);
    return 1;
  }
  timespec timeout{kLongS, 0};
  const timespec* until = timeout_until(deadline_ns, timeout);
  if (until == nullptr && ends_by_signal) until = &timeout;
  const signals::RunHandlers handlers_run;
  const SleepOnWord here(waiter.on.word.get());
  if (ended_by_put_off()) return -1;
  const int n = word_sleep(waiter.on, until, kind == Sleep::kCancellable);
  if (n > 0 && (events & POLLIN) != 0) note_wake_up();
  return n;
}

bool StreamReadiness::watch_by_edge(const PollPlan& plan, int wake_fd) noexcept {
  if (wake_fd < 0) return false;
  const std::uint64_t mark = thread_edges::mark_of(plan.channel_generation);
  if (in_edges_.load(std::memory_order_relaxed) == mark) return true;
  MutexLock rx(rx_mutex_);
  // Else the number may be something else's by now. The thread's waiter is told of such a change.
  const bool same = channel_ != nullptr && channel_generation_ == plan.channel_generation;
  const bool there = same && thread_edges::watch(wake_fd, id(), plan.channel_fd, plan.channel_events);
  if (there) in_edges_.store(mark, std::memory_order_relaxed);
  return there;
}

void StreamReadiness::after_wake(int wake_fd) noexcept {
  const std::uint64_t own = id();
  const auto is_own = [own](std::uint64_t stream) { return stream == own; };
  if (thread_edges::take(wake_fd, is_own).count > 0) take_in_by_edge();
}

bool StreamReadiness::sleep_early(int fd, WaitList& waiters, const DeferredSelector& use) noexcept {
  Waiter waiter;
  waiter.events = POLLIN;
  waiter.wake_fd = thread_wake_fd();
  Listed listed(&waiters, waiter);
  if (use.settled()) return true;
  pollfd fds[] = {{waiter.wake_fd, POLLIN, 0}, {fd, POLLIN, 0}};
  const int n = sleep_as_program(fds, 2, kForever);
  const int sleep_errno = errno;
  listed.leave();
  if (n > 0) {
    if (fds[0].revents != 0) clear_wake(waiter.wake_fd);
    return true;
  }
  errno = sleep_errno == EINTR ? after_handler() : sleep_errno;
  return false;
}

bool StreamReadiness::sleep_until_ready(short events, std::int64_t deadline_ns, bool restart, Sleep kind,
                               bool polled) noexcept {
  if (!polled && may_spin(events) && spin_until_ready(events, deadline_ns)) return true;
  if ((events & POLLIN) != 0) note_awaited();
  ThreadWaiter waiter;
  waiter.events = events;
  waiter.wake_fd = thread_wake_fd();
  // Without a descriptor to be woken by (EMFILE), look again every so often.
  const bool deaf = waiter.wake_fd < 0;
  std::int64_t until = deaf ? std::min(deadline_ns, sys::now_ns() + kDeafSliceNs) : deadline_ns;
  Listed listed(deaf ? nullptr : &waiters_, waiter);
  const bool restartable = restart && deadline_ns == kForever;
  int n = deaf ? kNoWord : sleep_on_word(waiter, events, until, kind, !restartable);
  PollPlan plan;
  pollfd fds[3] = {};
  if (n == kNoWord) {
    plan = plan_poll(events, Arm::kIfIdle);
    if (plan.ready != 0) return true;
    nfds_t count = 0;
    fds[count++] = {waiter.wake_fd, POLLIN, 0};  // a negative number is passed over
    if (sleeps_by_edge(plan)) {
      if (!watch_by_edge(plan, waiter.wake_fd)) until = std::min(deadline_ns, sys::now_ns() + kDeafSliceNs);
    } else if (plan.channel_fd >= 0) {
      fds[count++] = {plan.channel_fd, POLLIN, 0};
    }
    if (plan.use_kernel) fds[count++] = {fd(), plan.kernel_events, 0};
    n = kind == Sleep::kCancellable ? sleep_as_program(fds, count, until)
                                    : sleep_by(held, fds, count, until);
  }
  const int sleep_errno = errno;
  listed.leave();
  if (n > 0) {
    if (fds[0].revents != 0) after_wake(waiter.wake_fd);
    if (plan.channel_fd >= 0 && !sleeps_by_edge(plan) && fds[1].revents != 0) after_sleep();
  }
  if (n == 0 && until == deadline_ns) {
    errno = EAGAIN;
  } else if (n < 0) {
    errno = sleep_errno == EINTR && restartable ? after_handler() : sleep_errno;
  } else if (restartable && signals::thread_state.ran == signals::kRestarting) {
    errno = ERESTART;  // it has ended the sleep by what it has done
  } else {
    return true;
  }
  return false;
}

bool StreamReadiness::tx_is_held() noexcept {
  const State now = state();  // on a channel or on TCP: without a lock
  if (now != State::kSwitching && now != State::kResuming) return false;
  MutexLock tx(tx_mutex_);
  return protocol_.holds_sends();
}

bool StreamReadiness::room_is_near() const noexcept {
  const State now = state();
  return now == State::kSwitching ||
         (now == State::kResuming &&
          sys::now_ns() < left_at_ns_.load(std::memory_order_relaxed) + kTokenPatienceNs);
}

bool StreamReadiness::outlast_switch(std::int64_t asked_ns) noexcept {
  if (!tx_is_held()) return false;
  const int saved = errno;
  bool may_give_up;
  std::uint64_t which;
  {
    MutexLock tx(tx_mutex_);
    may_give_up = protocol_.send() == SendState::kFrozen;
    which = channel_generation_;
  }
  const std::int64_t began =
      state() == State::kResuming ? left_at_ns_.load(std::memory_order_relaxed) : asked_ns;
  if (may_give_up) {
    const std::int64_t patience = kSwitchPatienceNs << retry_.impatiences();
    // However long others have been waited for.
    sleep_while_held(std::max(asked_ns + patience, sys::now_ns() + kSwitchPatienceNs));
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    // Unless it is over, or our token is on its way.
    if (channel_generation_ == which) abort_switch(Reason::kBusy);
  }
  sleep_while_held(began + kTokenPatienceNs);
  errno = saved;
  return !tx_is_held();
}

void StreamReadiness::sleep_while_held(std::int64_t deadline) noexcept {
  Waiter waiter;
  waiter.events = POLLIN | POLLOUT;
  waiter.wake_fd = thread_wake_fd();
  bool held = waiter.wake_fd >= 0;
  while (held && sys::now_ns() < deadline) {
    waiters_.add(waiter);
    held = tx_is_held();
    pollfd fds{waiter.wake_fd, POLLIN, 0};
    const int n = held ? sleep_on(&fds, 1, deadline) : 0;
    if (n > 0) clear_wake(waiter.wake_fd);
    held = held && goes_on_after(n);
    waiters_.remove(waiter);
  }
}

// Looks without the locks, and so, like demote_for_good(), at what is stored and loaded seq_cst: see
// WaitList.
void StreamReadiness::wait_promoted(std::int64_t timeout_ns) noexcept {
  const int saved = errno;
  const std::int64_t deadline = sys::now_ns() + timeout_ns;
  Waiter waiter;
  waiter.events = POLLIN | POLLOUT;
  waiter.wake_fd = thread_wake_fd();
  while (waiter.wake_fd >= 0) {
    waiters_.add(waiter);
    const State now = state();
    const bool refused = now == State::kOnTcp && role_ == Role::kConnect &&
                         reason_.load() != Reason::kPending;
    const bool may_come = now == State::kConnecting || now == State::kSwitching ||
                          (now == State::kOnTcp && !kernel_only_.load() && (!refused || retry_.passes()));
    if (!may_come || sys::now_ns() >= deadline) {
      waiters_.remove(waiter);
      break;
    }
    pollfd fds{waiter.wake_fd, POLLIN, 0};
    const int n = sleep_on(&fds, 1, refused ? std::min(deadline, sys::now_ns() + kAskAgainNs) : deadline);
    if (n > 0) clear_wake(waiter.wake_fd);
    const bool ends = !goes_on_after(n);
    waiters_.remove(waiter);
    if (ends) break;
    if (n == 0 && refused && retry_.claim()) start_promotion();
  }
  errno = saved;
}

// What the program has not read of the ring is the kernel's to give by now, or never will be: the
// connection is over, or no more goes into the buffer whose size the program has fixed.
bool StreamReadiness::has_come_again(Refill& refill) noexcept {
  MutexLock rx(rx_mutex_);
  if (owed_ == 0) return true;
  const std::uint64_t unread = unread_on_tcp();
  const std::int64_t now = sys::now_ns();
  if (unread != refill.unread) refill = {unread, now};
  const bool full = now - refill.since_ns >= kRefillPauseNs && tcp_is_half_full(fd());
  if (unread >= owed_ || full || !tcp_established(fd())) owed_ = 0;
  return owed_ == 0;
}

void StreamReadiness::sleep_until_on_kernel(std::int64_t timeout_ns, bool can_be_woken) noexcept {
  const std::int64_t deadline = sys::now_ns() + timeout_ns;
  Waiter waiter;
  waiter.events = POLLIN | POLLOUT;
  waiter.wake_fd = timeout_ns > 0 && can_be_woken ? thread_wake_fd() : -1;
  Refill refill;
  for (;;) {
    if (waiter.wake_fd >= 0) waiters_.add(waiter);
    const bool kernels = kernel_only_.load();
    const bool settled =
        (kernels && has_come_again(refill)) || state() == State::kReset || standing_.error() != 0;
    const std::int64_t now = sys::now_ns();
    const bool late = now >= deadline;
    bool ends = settled || late;
    if (!ends) {
      pollfd fds{waiter.wake_fd, POLLIN, 0};
      const bool blind = waiter.wake_fd < 0 || kernels;
      const int n = blind ? sleep_on(nullptr, 0, std::min(deadline, now + kLookAgainNs))
                          : sleep_on(&fds, 1, deadline);
      if (n > 0) clear_wake(waiter.wake_fd);
      ends = !goes_on_after(n);
    }
    if (waiter.wake_fd >= 0) waiters_.remove(waiter);
    if (ends) break;
  }
}

}  // namespace ringroad
