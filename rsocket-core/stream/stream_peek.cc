// recv(2) with MSG_PEEK and MSG_WAITALL: a sleep for more bytes, beside those that are there already and
// stay.
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/stream.h"

namespace ringroad {
namespace {

constexpr std::int64_t kDeafSliceNs = 5'000'000;
constexpr std::int64_t kPinTimeoutNs = 2'000'000'000;

// Tells of each arrival on a TCP socket that has unread bytes, where poll(2) would say again and again that
// it has.
class Arrivals {
 public:
  explicit Arrivals(int fd) noexcept
      : epoll_(sys::open_high_or_low([] { return sys::epoll_create1(EPOLL_CLOEXEC); })) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
    if (epoll_ >= 0 && sys::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
      sys::close_quietly(std::exchange(epoll_, -1));
    }
  }
  ~Arrivals() {
    if (epoll_ >= 0) sys::close_quietly(epoll_);
  }
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  int fd() const noexcept { return epoll_; }  // readable after one; -1: there is none to be had
  void take() noexcept {
    epoll_event event{};
    if (epoll_ >= 0) sys::epoll_wait(epoll_, &event, 1, 0);
  }

 private:
  int epoll_;
};

}  // namespace

// Whether what has arrived is all that ever will, or there is an error to be told of.
bool Stream::nothing_follows() noexcept {
  MutexLock rx(rx_mutex_);
  if (shut_rd_ || peer_closed() || is_over() || standing_.error() != 0) {
    return true;
  }
  if (source() != Source::kTcp) return all_arrived() || again_.ends;
  pollfd ends{fd(), POLLRDHUP, 0};
  timespec at_once{};
  return sys::ppoll(&ends, 1, &at_once, nullptr) > 0;
}

ssize_t Stream::peek_all(const iovec* iov, int count_iov, int flags) noexcept {
  std::size_t total = 0;
  for (int i = 0; i < count_iov; ++i) total += iov[i].iov_len;
  const int saved = errno;
  const std::int64_t deadline = io_deadline(false);
  // Never would so much be there at once.
  if (total > config_.ring_bytes) demote_for_good(Reason::kDescriptorUse, kPinTimeoutNs);
  Arrivals arrivals(fd());
  Waiter waiter;
  waiter.events = POLLIN;
  waiter.wake_fd = thread_wake_fd();
  const bool deaf = waiter.wake_fd < 0 || arrivals.fd() < 0;
  signals::begin_wait();
  for (;;) {
    // From here on nothing comes unnoticed.
    Listed listed(waiter.wake_fd < 0 ? nullptr : &waiters_, waiter);
    arrivals.take();
    const PollPlan plan = plan_poll(POLLIN | POLLRDHUP, Arm::kAlways);
    const bool ended = nothing_follows();
    IoResult r;
    {
      MutexLock lock(rx_mutex_);
      r = try_recv(iov, count_iov, 0, flags);
    }
    if (r.step == Step::kService) {
      service();
      continue;
    }
    if (r.step == Step::kError) {
      errno = r.error;
      return -1;
    }
    const auto seen = static_cast<ssize_t>(r.step == Step::kDone ? r.bytes : 0);
    const bool done = r.step == Step::kDone && (r.bytes == 0 || r.bytes >= total || ended);
    if (done) {
      errno = saved;
      return seen;
    }
    pollfd fds[3];
    nfds_t count = 0;
    fds[count++] = {waiter.wake_fd, POLLIN, 0};  // a negative number is passed over
    const bool by_edge = sleeps_by_edge(plan);
    const bool half_deaf = by_edge && !watch_by_edge(plan, waiter.wake_fd);
    if (plan.channel_fd >= 0 && !by_edge) fds[count++] = {plan.channel_fd, POLLIN, 0};
    fds[count++] = {arrivals.fd(), POLLIN, 0};
    const std::int64_t soon = sys::now_ns() + kDeafSliceNs;
    const std::int64_t until = deaf || half_deaf ? std::min(deadline, soon) : deadline;
    const int n = sleep_as_program(fds, count, until);
    const int sleep_errno = errno;
    listed.leave();
    if (n > 0) {
      if (fds[0].revents != 0) after_wake(waiter.wake_fd);
      if (plan.channel_fd >= 0 && !by_edge && fds[1].revents != 0) after_sleep();
      continue;
    }
    if (n == 0 && until != deadline) continue;
    if (seen > 0 && sleep_errno != ECANCELED) {
      errno = saved;
      return seen;
    }
    const bool interrupted = n < 0 && sleep_errno == EINTR && deadline == kForever;
    errno = n == 0 ? EAGAIN : interrupted ? after_handler() : sleep_errno;
    return -1;
  }
}

}  // namespace ringroad
