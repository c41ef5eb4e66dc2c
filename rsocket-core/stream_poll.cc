// Waiting on a stream: what poll(2) would say, and sleeping until it changes.
#include <linux/sockios.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "rsocket-core/stream_short.h"
#include "rsocket-core/sys.h"
#include "rsocket-core/tcp_counters.h"

namespace ringroad {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
constexpr short kReadBits = POLLIN | POLLRDNORM;
constexpr short kWriteBits = POLLOUT | POLLWRNORM;
constexpr short kAlwaysBits = POLLERR | POLLHUP;
constexpr std::int64_t kDeafSliceNs = 5'000'000;
// Who polls a queue pair for bytes looks for what else there may be each so many looks.
constexpr unsigned kLooksPerLookAround = 8;
constexpr std::int64_t kLookAgainNs = 200'000;  // where nobody can wake us
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

// The part of plan_on_channel() that is the channel's.
template <typename Carrying>
bool plan_arrivals(Carrying& channel, short events, Stream::Arm arm,
                   Stream::PollPlan& plan) noexcept {
  channel.progress();
  if (hardly_ever(channel.control_pending() || channel.failed())) return false;
  plan.arrivals = channel.rx_head();
  short ready = 0;
  if (plan.arrivals != channel.rx_consumed()) ready |= kReadBits;
  if ((events & kWriteBits) != 0 && has_room(channel)) ready |= kWriteBits;
  plan.ready = ready & events;
  if (arm == Stream::Arm::kNever || (arm == Stream::Arm::kIfIdle && plan.ready != 0)) return true;
  if (!channel.arm()) return false;  // something came meanwhile: look again
  // A sender, who has the other lock, may have taken in what came since the look, which arm() finds nothing new in.
  if (hardly_ever(channel.rx_head() != plan.arrivals || channel.control_pending())) return false;
  plan.channel_fd = channel.wait_fd();
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

// Sleeps until a descriptor is ready or the deadline is over, or has a handler run since the program's call began
// to wait: one that comes with a wake-up of the library's own ends the next sleep. As ppoll(2).
int sleep_by(SleepCall way, pollfd* fds, nfds_t count, std::int64_t deadline_ns) noexcept {
  const signals::Now handlers_run;
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

// A sleep ended with EINTR: does the call go on? If so it begins to wait anew.
bool Stream::restarts() noexcept {
  const unsigned ran = signals::thread_state.ran;
  const bool goes_on =
      ran == signals::kNone ? every_handler_restarts() : ran == signals::kRestarting;
  if (goes_on) signals::begin_wait();
  return goes_on;
}

int Stream::sleep_as_program(pollfd* fds, nfds_t count, std::int64_t deadline_ns) noexcept {
  return sleep_by(cancellable, fds, count, deadline_ns);
}

bool Stream::sleep_early(int fd, WaitList& waiters, const FreshUse& use) noexcept {
  Waiter waiter;
  waiter.events = POLLIN;
  waiter.wake_fd = thread_wake_fd();
  for (;;) {
    Listed listed(&waiters, waiter);
    if (use.settled()) return true;
    pollfd fds[] = {{waiter.wake_fd, POLLIN, 0}, {fd, POLLIN, 0}};
    const int n = sleep_as_program(fds, 2, kForever);
    const int sleep_errno = errno;
    listed.leave();
    if (n > 0) {
      if (fds[0].revents != 0) sys::drain_eventfd(waiter.wake_fd);
      return true;
    }
    if (n < 0 && sleep_errno == EINTR && restarts()) continue;
    errno = sleep_errno;
    return false;
  }
}

// What the channel and its peer's end say; enough to decide whether to look closer.
short Stream::channel_ready(short events) noexcept {
  Channel* channel = channel_.get();
  if (channel == nullptr) return events;
  short ready = 0;
  if (channel->rx_head() != channel->rx_consumed() || all_arrived() || peer_closed()) {
    ready |= kReadBits;
  }
  if (has_room(*channel) || peer_closed()) ready |= kWriteBits;
  if (state() != State::kOnChannel || channel->control_pending() || channel->failed()) {
    ready = events;
  }
  return ready & events;
}

// What is planned for nearly each message of a stream that is on its channel. False: nothing is known.
// As in stream_short.h, the state says most of what plan_poll() asks one by one.
bool Stream::plan_on_channel(short events, Arm arm, PollPlan& plan) noexcept {
  if (!standing_.is_only(State::kOnChannel, Standing::kStalled) || verified_ != 0 || shut_rd_ ||
      fin_at_ != kNoBoundary) {
    return false;
  }
  Channel& channel = *channel_;
  plan.on_channel = true;
  plan.blocked = blocked_.load(std::memory_order_relaxed);
  plan.shutdowns = shutdowns_.load(std::memory_order_relaxed);
  plan.channel_generation = channel_generation_;
  plan.frames = frames_rx_;
  if (channel.is_shm()) {
    return plan_arrivals(static_cast<ShmChannel&>(channel), events, arm, plan);
  }
  return plan_arrivals(channel, events, arm, plan);
}

// Only who asks for room needs the senders' lock: else one could find none, and count that, between the two
// looks here.
bool Stream::plan_plainly(short events, Arm arm, PollPlan& plan) noexcept {
  touch();
  if (!standing_.is(State::kOnChannel)) return false;
  if ((events & kWriteBits) == 0) {
    MutexLock rx(rx_mutex_);
    return plan_on_channel(events, arm, plan);
  }
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  if (!plan_on_channel(events, arm, plan)) return false;
  if ((plan.ready & kWriteBits) == 0) watch_for_stall();
  return true;
}

void Stream::prefetch_more() const noexcept {
  const stats::StreamCounts& counts = slot_->counts;
  ringroad::prefetch(reinterpret_cast<std::uintptr_t>(&counts.traffic.rx_messages[1]));
  ringroad::prefetch(reinterpret_cast<std::uintptr_t>(&counts.rx_sizes));
  Channel::Near near;
  for (std::size_t i = 0; i < near.size(); ++i) near[i] = near_[i].load(std::memory_order_relaxed);
  if (near[0] != 0) ShmChannel::prefetch(near);
}

Stream::PollPlan Stream::plan_poll(short events, Arm arm) noexcept {
  if (PollPlan plan; plan_plainly(events, arm, plan)) return plan;
  for (bool serviced = false;;) {
    PollPlan plan;
    bool service_first = false;
    {
      MutexLock tx(tx_mutex_);
      MutexLock rx(rx_mutex_);
      skip_verified();
      const Source from = source();
      const bool reading_kernel = from == Source::kTcp || from == Source::kTcpUpToBoundary;
      const bool writing_kernel = kernel_takes_bytes();
      short ready = 0;
      plan.blocked = blocked_.load(std::memory_order_relaxed);
      plan.shutdowns = shutdowns();
      plan.channel_generation = channel_generation_;
      plan.frames = frames_rx_;
      // Closed: by a thread that did not wait for this one, which is inside a call.
      const bool closed = state() == State::kClosed && channel_ != nullptr && channel_->failed();
      if (state() == State::kReset || closed) {
        ready = kReadBits | kWriteBits | POLLRDHUP | POLLHUP;
        if (standing_.error() != 0) ready |= POLLERR;
        plan.ready = ready & static_cast<short>(events | kAlwaysBits);
        return plan;
      }
      // Between the carriers: what has come may be a frame, bytes behind it, or a reset, and that is not
      // the agent's alone to find out.
      if (from == Source::kNothing && !std::exchange(serviced, true)) service_first = true;
      if (reading_kernel) plan.kernel_events |= events & static_cast<short>(~kWriteBits);
      if (writing_kernel) plan.kernel_events |= events & kWriteBits;
      plan.use_kernel = plan.kernel_events != 0 || (reading_kernel && writing_kernel);
      const bool reading_ring = from == Source::kRing && channel_ != nullptr;
      const bool writing_ring = tx_ == Tx::kChannel && channel_ != nullptr;
      // What comes by the ring is the next, or stands behind bytes that are unread in the kernel
      // still.
      const bool ring_follows =
          channel_ != nullptr && from == Source::kTcpUpToBoundary && token_seen_ && !resume_sent_;
      const bool use_channel = reading_ring || ring_follows || writing_ring;
      plan.on_channel = use_channel;
      bool peer_ended = false;
      if (use_channel) {
        channel_->progress();
        plan.arrivals = channel_->rx_head();
      }
      if (from == Source::kAgain) ready |= kReadBits;
      if (reading_ring && plan.arrivals != channel_->rx_consumed()) ready |= kReadBits;
      if (reading_ring || ring_follows) peer_ended = fin_at_ != kNoBoundary || peer_closed();
      if (shut_rd_ && !(reading_kernel && kernel_shut_rd_)) peer_ended = true;
      if (again_ends_) peer_ended = true;
      plan.ended = peer_ended;
      if (peer_ended) {
        ready |= POLLRDHUP;
        if (shut_rd_ || again_ends_ || peer_closed() || reading_kernel ||
            channel_->rx_head() == fin_at_) {
          ready |= kReadBits;
        }
      }
      if (writing_ring) {
        if (shut_wr() || peer_closed() || has_room(*channel_)) {
          ready |= kWriteBits;
        } else if (state() == State::kOnChannel && (events & kWriteBits) != 0) {
          watch_for_stall();
        }
      } else if (!writing_kernel && (shut_wr() || tx_ == Tx::kDead)) {
        ready |= kWriteBits;
      } else if (!writing_kernel) {
        plan.frozen = true;
      }
      if (peer_ended && shut_wr()) ready |= POLLHUP;
      if (sent_after_peer_closed_) ready |= POLLHUP;
      if (standing_.error() != 0) ready |= POLLERR;
      plan.ready = ready & static_cast<short>(events | kAlwaysBits);
      // After an orderly end the channel has failed for good, and nothing more comes from it.
      const bool over = use_channel && peer_closed() && channel_->failed();
      if (use_channel && (channel_->control_pending() || (channel_->failed() && !over))) {
        service_first = true;
      } else if (!service_first && use_channel && !over &&
                 (arm == Arm::kAlways || (arm == Arm::kIfIdle && plan.ready == 0))) {
        if (!channel_->arm()) continue;  // something came meanwhile: look again
        plan.channel_fd = channel_->wait_fd();
      }
    }
    if (!service_first) return plan;
    service();
  }
}

// Nobody promises not to read past a place while the lock is held, and no frame comes before that.
short Stream::ask_kernel(int number, short bits) noexcept {
  timespec at_once{};
  MutexLock rx(rx_mutex_);
  const Source from = source();
  if (from != Source::kTcp && from != Source::kTcpUpToBoundary) bits &= kWriteBits | kAlwaysBits;
  pollfd now{number, bits, 0};
  return sys::ppoll(&now, 1, &at_once, nullptr) > 0 ? now.revents : 0;
}

std::uint64_t Stream::tcp_arrivals(bool& ends) noexcept {
  MutexLock rx(rx_mutex_);
  ends = boundary_ != kNoBoundary && !resume_seen_;
  return tcp_rx_ - frames_rx_ + unread_on_tcp();
}

bool Stream::claim_arrivals() noexcept {
  MutexLock rx(rx_mutex_);
  Arrived now;
  now.tcp = tcp_rx_ - frames_rx_ + unread_on_tcp();
  now.ring = channel_ != nullptr ? channel_->rx_head() : 0;
  now.channel = channel_generation_;
  return std::exchange(claimed_, now) != now;
}

void Stream::after_sleep(const Waiter* taker) noexcept {
  {
    MutexLock rx(rx_mutex_);
    if (channel_ == nullptr) return;
    channel_->drain();
    channel_->progress();
  }
  // The wake-up that was taken may have been somebody else's too, and nobody is armed any more.
  waiters_.wake(POLLIN | POLLOUT, taker);
  if (agent_on_channel_.load(std::memory_order_relaxed)) host_->attend(*this);
}

bool Stream::may_spin(short events) noexcept {
  return state() == State::kOnChannel && (events & (kReadBits | kWriteBits)) != 0 &&
         config_.spin_ns != 0 && spin_.pays();
}

bool Stream::spin_until_ready(short events, std::int64_t deadline_ns,
                              std::optional<std::uint64_t> known_shutdowns,
                              ShortReceive* receive) noexcept {
  using Look = Spin::Look;
  std::int64_t longest_ns = config_.spin_ns;
  if (deadline_ns != kForever) {
    longest_ns = std::clamp<std::int64_t>(deadline_ns - sys::now_ns(), 0, longest_ns);
  }
  unsigned looks = 0;
  return spin_.until(
      [&]() noexcept {
        if (signals::came_since_begin()) return Look::kInterrupted;
        const bool was_free = rx_mutex_.lock_and_tell();
        // What comes is bytes, nearly always. But a look at shared memory may take the line from a peer
        // that is about to write it: there a closer look, which is later, finds them sooner.
        const bool all = receive == nullptr || channel_ == nullptr || channel_->is_shm() ||
                         ++looks % kLooksPerLookAround == 0;
        bool moved = false;
        if (all) {
          if (channel_ != nullptr) channel_->progress();
          if (!known_shutdowns) known_shutdowns = shutdowns();
          moved = channel_ready(events) != 0 || shutdowns() != *known_shutdowns;
        }
        if (receive != nullptr) {
          if (moved || !all) receive->taken = take_short(receive->to, receive->n);
          // Who has not asked before finds these out here.
          moved |= receive->taken > 0 ||
                   (all && (shut_rd_ || standing_.error() != 0));
        }
        const bool awaited = (rx_mutex_.unlock_and_tell() & Mutex::kAwaited) != 0 && was_free;
        return moved ? Look::kReady : awaited ? Look::kInterrupted : Look::kNothing;
      },
      longest_ns);
}

Spin::Look Stream::look_at_channel(std::uint64_t arrivals, bool room_awaited,
                                   std::uint64_t known_shutdowns) noexcept {
  using Look = Spin::Look;
  const bool was_free = rx_mutex_.lock_and_tell();
  if (channel_ != nullptr) channel_->progress();
  const bool moved = channel_ == nullptr || state() != State::kOnChannel ||
                     channel_->rx_head() != arrivals || channel_->control_pending() ||
                     channel_->failed() || shutdowns() != known_shutdowns ||
                     (room_awaited && has_room(*channel_));
  const bool awaited = (rx_mutex_.unlock_and_tell() & Mutex::kAwaited) != 0 && was_free;
  return moved ? Look::kReady : awaited ? Look::kInterrupted : Look::kNothing;
}

bool Stream::sleep_until_ready(short events, std::int64_t deadline_ns, bool restart, Sleep kind,
                               bool polled) noexcept {
  if (!polled && may_spin(events) && spin_until_ready(events, deadline_ns)) return true;
  if ((events & POLLIN) != 0) note_awaited();
  Waiter waiter;
  waiter.events = events;
  waiter.wake_fd = thread_wake_fd();
  for (;;) {
    // Without a descriptor to be woken by (EMFILE), look again every so often.
    const bool deaf = waiter.wake_fd < 0;
    const std::int64_t until =
        deaf ? std::min(deadline_ns, sys::now_ns() + kDeafSliceNs) : deadline_ns;
    Listed listed(deaf ? nullptr : &waiters_, waiter);
    const PollPlan plan = plan_poll(events, Arm::kIfIdle);
    if (plan.ready != 0) return true;
    pollfd fds[3];
    nfds_t count = 0;
    fds[count++] = {waiter.wake_fd, POLLIN, 0};  // a negative number is passed over
    if (plan.channel_fd >= 0) fds[count++] = {plan.channel_fd, POLLIN, 0};
    if (plan.use_kernel) fds[count++] = {fd(), plan.kernel_events, 0};
    const int n = kind == Sleep::kCancellable ? sleep_as_program(fds, count, until)
                                              : sleep_by(held, fds, count, until);
    const int sleep_errno = errno;
    listed.leave();
    if (n > 0) {
      if (fds[0].revents != 0) sys::drain_eventfd(waiter.wake_fd);
      if (plan.channel_fd >= 0 && fds[1].revents != 0) after_sleep();
      return true;
    }
    if (n == 0 && until != deadline_ns) return true;
    if (n < 0 && sleep_errno == EINTR && restart && deadline_ns == kForever && restarts()) {
      continue;
    }
    errno = n == 0 ? EAGAIN : sleep_errno;
    return false;
  }
}

bool Stream::tx_is_held() noexcept {
  const State now = state();  // on a channel or on TCP: without a lock
  if (now != State::kSwitching && now != State::kResuming) return false;
  MutexLock tx(tx_mutex_);
  return tx_holds();
}

bool Stream::room_is_near() const noexcept {
  const State now = state();
  return now == State::kSwitching ||
         (now == State::kResuming &&
          sys::now_ns() < left_at_ns_.load(std::memory_order_relaxed) + kTokenPatienceNs);
}

bool Stream::outlast_switch(std::int64_t asked_ns) noexcept {
  if (!tx_is_held()) return false;
  const int saved = errno;
  bool may_give_up;
  std::uint64_t which;
  {
    MutexLock tx(tx_mutex_);
    may_give_up = tx_ == Tx::kFrozen;
    which = channel_generation_;
  }
  const std::int64_t began =
      state() == State::kResuming ? left_at_ns_.load(std::memory_order_relaxed) : asked_ns;
  if (may_give_up) {
    const std::int64_t patience = kSwitchPatienceNs << hurries_.load(std::memory_order_relaxed);
    // However long others have been waited for.
    sleep_while_held(std::max(asked_ns + patience, sys::now_ns() + kSwitchPatienceNs));
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    // Unless it is over, or our token is on its way.
    if (channel_generation_ == which) give_up(Reason::kBusy);
  }
  sleep_while_held(began + kTokenPatienceNs);
  errno = saved;
  return !tx_is_held();
}

void Stream::sleep_while_held(std::int64_t deadline) noexcept {
  Waiter waiter;
  waiter.events = POLLIN | POLLOUT;
  waiter.wake_fd = thread_wake_fd();
  bool held = waiter.wake_fd >= 0;
  while (held && sys::now_ns() < deadline) {
    waiters_.add(waiter);
    held = tx_is_held();
    pollfd fds{waiter.wake_fd, POLLIN, 0};
    const int n = held ? sleep_on(&fds, 1, deadline) : 0;
    if (n > 0) sys::drain_eventfd(waiter.wake_fd);
    held = held && goes_on_after(n);
    waiters_.remove(waiter);
  }
}

// Looks without the locks, and so, like pin(), at what is stored and loaded seq_cst: see WaitList.
void Stream::wait_promoted(std::int64_t timeout_ns) noexcept {
  const int saved = errno;
  const std::int64_t deadline = sys::now_ns() + timeout_ns;
  Waiter waiter;
  waiter.events = POLLIN | POLLOUT;
  waiter.wake_fd = thread_wake_fd();
  while (waiter.wake_fd >= 0) {
    waiters_.add(waiter);
    const State now = state();
    const bool may_come = now == State::kConnecting || now == State::kSwitching ||
                          (now == State::kOnTcp && !kernel_only_.load() &&
                           (role_ == StreamRole::kAccept || reason_.load() == Reason::kPending));
    if (!may_come || sys::now_ns() >= deadline) {
      waiters_.remove(waiter);
      break;
    }
    pollfd fds{waiter.wake_fd, POLLIN, 0};
    const int n = sleep_on(&fds, 1, deadline);
    if (n > 0) sys::drain_eventfd(waiter.wake_fd);
    const bool ends = !goes_on_after(n);
    waiters_.remove(waiter);
    if (ends) break;
  }
  errno = saved;
}

// What the program has not read of the ring is the kernel's to give by now, or never will be: the
// connection is over, or no more goes into the buffer whose size the program has fixed.
bool Stream::has_come_again(Refill& refill) noexcept {
  MutexLock rx(rx_mutex_);
  if (owed_ == 0) return true;
  const std::uint64_t unread = unread_on_tcp();
  const std::int64_t now = sys::now_ns();
  if (unread != refill.unread) refill = {unread, now};
  const bool full = now - refill.since_ns >= kRefillPauseNs && tcp_is_half_full(fd());
  if (unread >= owed_ || full || !tcp_established(fd())) owed_ = 0;
  return owed_ == 0;
}

bool Stream::pin(Reason reason, std::int64_t timeout_ns, bool can_be_woken) noexcept {
  const int saved = errno;
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    pinned_ = true;
    if (reason == Reason::kFdPassed && share() != 0) host_->keep_share(share());
    leave_or_give_up(reason);
    // It is for the kernel to give, unless nothing comes any more.
    if (remembers() && kernel_is_level() && !is_over()) forget_again();
    if (state() == State::kOnTcp) reason_ = reason;
    settle_kernel_only();
  }
  publish_state();
  host_->attend(*this);
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
      if (n > 0) sys::drain_eventfd(waiter.wake_fd);
      ends = !goes_on_after(n);
    }
    if (waiter.wake_fd >= 0) waiters_.remove(waiter);
    if (ends) break;
  }
  errno = saved;
  return kernel_only_.load();
}

}  // namespace ringroad
