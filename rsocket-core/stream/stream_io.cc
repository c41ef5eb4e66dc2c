// The program's uses of a stream, and its sends. Its receives: stream_recv.cc.
#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "rsocket-core/base/faults.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/stream_fastpath.h"
#include "rsocket-core/stream/stream_vectors.h"

namespace ringroad {
namespace {

// What the kernel will tell of the connection, taken; 0: nothing.
int pending_error(int fd) noexcept {
  pollfd entry{fd, 0, 0};
  timespec at_once{};
  int error = 0;
  socklen_t length = sizeof error;
  if (sys::ppoll(&entry, 1, &at_once, nullptr) > 0 && (entry.revents & POLLERR) != 0) {
    sys::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  }
  return error;
}

}  // namespace

void Stream::count_early(bool sent, std::size_t bytes) noexcept {
  if (sent) {
    MutexLock lock(tx_mutex_);
    tcp_tx_ += bytes;
    count_kernel_io(true, static_cast<ssize_t>(bytes));
  } else {
    MutexLock lock(rx_mutex_);
    tcp_rx_ += bytes;
    count_kernel_io(false, static_cast<ssize_t>(bytes));
  }
  retry_.count_bytes(bytes);
  sent_last_.store(sent, std::memory_order_relaxed);
}

void Stream::on_deferred_call_returned(bool sent, std::size_t bytes) noexcept {
  touch();
  if (bytes > 0) count_early(sent, bytes);
  bool awaited;
  {
    MutexLock lock(rx_mutex_);
    awaited = guests_.fetch_sub(1, std::memory_order_acq_rel) == 1 && tell_when_read_;
    if (awaited) {
      tell_when_read_ = false;
      read_since_asked_ = true;
    }
  }
  if (awaited) attend();
  note_use(bytes > 0 ? 1 : 0, 0);
}

void Stream::note_use(std::size_t messages, std::size_t bytes) noexcept {
  if (!retry_.count_use(messages, bytes)) return;
  if (const std::int64_t at = retry_.not_before_ns(); at != 0 && sys::now_ns() < at) return;
  if (guests_.load(std::memory_order_acquire) != 0) return;  // the last one that leaves comes here
  if (retry_.claim()) start_promotion();
}

// An error is told once, by a call that has nothing else to tell: not where `done` bytes are through.
int Stream::tell_error(std::size_t done) noexcept {
  if (standing_.error() == 0) return 0;
  return done > 0 ? standing_.error() : standing_.take_error();
}

Stream::IoResult Stream::kernel_refused(std::size_t done) noexcept {
  if (errno == EAGAIN) return {Step::kWouldBlock, 0, 0};
  // The kernel has told it, and forgotten it; but for EPIPE, which it will say again.
  if (done > 0 && errno != EPIPE) standing_.set_error(errno);
  return {Step::kError, 0, errno};
}

// ---- Sending

ssize_t Stream::send(const iovec* iov, int count_iov, int flags, Sleep sleep) noexcept {
  const signals::DeferHandlers whole;  // a handler sends before it or after it, not in between its pieces
  if (count_iov == 1) {
    const ssize_t sent = send_short(iov->iov_base, iov->iov_len);
    return mostly(sent > 0) ? sent : send_long(iov, 1, flags, sleep);
  }
  return send_long(iov, count_iov, flags, sleep);
}

ssize_t Stream::send_long(const iovec* iov, int count_iov, int flags, Sleep sleep) noexcept {
  touch();
  const int saved_errno = errno;
  const std::size_t total = total_bytes(iov, count_iov);
  MaySleep may_sleep(*this, flags, shared_.load(std::memory_order_relaxed));
  std::size_t done = 0;
  std::int64_t deadline = 0;
  bool outlasted = false;
  signals::begin_wait();
  for (;;) {
    IoResult r;
    bool by_channel;
    bool held;
    {
      MutexLock lock(tx_mutex_);
      r = try_send(iov, count_iov, done, flags);
      by_channel = protocol_.sends_to_ring();
      held = protocol_.holds_sends();
      if (r.step == Step::kDone) {
        count(true, by_channel, r.bytes);
        if (done == 0) count_message(true, by_channel);
        if (done + r.bytes >= total) count_size(true, total);
        if (standing_.is(StateWord::kStalled)) stall_ends();
      }
    }
    if (r.step == Step::kDone) {
      done += r.bytes;
      // A partly accepted write to the kernel means that its buffer is full.
      if (done >= total) break;
      if (!by_channel && !may_sleep()) {
        blocked_.fetch_add(1, std::memory_order_relaxed);
        break;
      }
    } else if (r.step == Step::kService) {
      service();
    } else if (r.step == Step::kError) {
      if (done > 0) break;
      if (r.error == EPIPE && (flags & MSG_NOSIGNAL) == 0) pthread_kill(pthread_self(), SIGPIPE);
      errno = r.error;
      return -1;
    } else {
      if (total == 0) break;  // nothing needs no room
      if (!may_sleep()) {
        // The change may be over by now.
        if (!std::exchange(outlasted, true) && (outlast_switch(sys::now_ns()) || held)) continue;
        blocked_.fetch_add(1, std::memory_order_relaxed);
        if (done > 0) break;
        errno = EAGAIN;
        return -1;
      }
      if (deadline == 0) deadline = io_deadline(true);
      if (!sleep_until_ready(POLLOUT, deadline, done == 0, sleep)) {
        if (done > 0 && errno != ECANCELED) break;
        return -1;
      }
    }
  }
  if (done < total && done > 0) {
    MutexLock lock(tx_mutex_);
    count_size(true, done);
  }
  sent_last_.store(true, std::memory_order_relaxed);
  note_use(1, done);
  errno = saved_errno;
  return static_cast<ssize_t>(done);
}

Stream::IoResult Stream::try_send(const iovec* iov, int count_iov, std::size_t skip,
                                  int flags) noexcept {
  if (const int error = tell_error(skip); error != 0) return {Step::kError, 0, error};
  if (shut_wr()) {
    // A reset is told first.
    const int error = protocol_.sends_to_kernel() ? pending_error(fd()) : 0;
    return {Step::kError, 0, error != 0 ? error : EPIPE};
  }
  switch (protocol_.send()) {
    case SendState::kTcp:
    case SendState::kSecond:
    case SendState::kGaveUp: {
      if (!kernel_takes_bytes()) return {Step::kWouldBlock, 0, 0};
      const int kernel_flags = flags | MSG_DONTWAIT | MSG_NOSIGNAL;
      const ssize_t n = skip == 0
                            ? move_all<sys::send, sys::sendmsg>(fd(), iov, count_iov, kernel_flags)
                            : move_window<sys::sendmsg>(fd(), iov, count_iov, skip, kNoLimit, kernel_flags);
      if (n < 0) {
        return kernel_refused(skip);
      }
      tcp_tx_ += static_cast<std::uint64_t>(n);
      if (n > 0) wrote_since_freeze_ = true;
      return {Step::kDone, static_cast<std::size_t>(n), 0};
    }
    case SendState::kChannel: {
      if (fin_at_ == kNoBoundary && channel_->control_may_wait()) {
        channel_->progress();
        if (channel_->control_pending()) return {Step::kService, 0, 0};
      }
      // It may wait for this program to read before its connection ends: finish_linger().
      if (peer_closed() || (standing_.is(StateWord::kPeerClosing) && fin_at_ != kNoBoundary)) {
        // As the kernel has it: the first send after the peer's close is taken, its reset makes
        // the next one fail.
        if (sent_after_peer_closed_) return {Step::kError, 0, EPIPE};
        const std::size_t taken = total_bytes(iov, count_iov) - skip;
        if (taken == 0) return {Step::kDone, 0, 0};
        const auto is_there = [](const std::byte* from, std::size_t n) { return faults::can_read(from, n); };
        if (!for_each_piece(iov, count_iov, skip, taken, is_there)) return {Step::kError, 0, EFAULT};
        sent_after_peer_closed_ = true;
        shutdowns_.fetch_add(1, std::memory_order_relaxed);
        standing_.set_error(EPIPE);
        waiters_.wake(POLLIN | POLLOUT);
        return {Step::kDone, taken, 0};
      }
      if (is_over()) return {Step::kError, 0, EPIPE};
      if (channel_->failed()) return {Step::kService, 0, 0};
      Channel::View view = channel_->tx_view();
      if (view.size == 0) {
        channel_->progress();
        view = channel_->tx_view();
      }
      if (view.size == 0) {
        if (channel_->control_pending() || channel_->failed()) return {Step::kService, 0, 0};
        stall_begins();
        return {Step::kWouldBlock, 0, 0};
      }
      const std::size_t limit = std::min(view.size, kCommitBytes);
      std::byte* to = view.data;
      const auto put = [&](const std::byte* from, std::size_t n) {
        if (!faults::copy(to, from, n)) return false;
        to += n;
        return true;
      };
      if (!for_each_piece(iov, count_iov, skip, limit, put)) return {Step::kError, 0, EFAULT};
      const auto n = static_cast<std::size_t>(to - view.data);
      if (n > 0) channel_->commit(n);
      if (channel_->tx_posted() != channel_->tx_head()) {
        // Message credits are out. What they bring back may be here already; otherwise the agent
        // sends the rest when they come, as the program may not call again.
        channel_->progress();
        channel_->flush();
        if (channel_->tx_posted() != channel_->tx_head()) attend();
      }
      return {Step::kDone, n, 0};
    }
    case SendState::kDead:
    case SendState::kDeadCommitted:
    case SendState::kDeadReturning:
      return {Step::kError, 0, EPIPE};
    case SendState::kFrozen:
    case SendState::kToken:
    case SendState::kReplay:
    case SendState::kLeft:
    case SendState::kCount:
      if (sent_after_peer_closed_) return {Step::kError, 0, EPIPE};
      break;
  }
  return {Step::kWouldBlock, 0, 0};
}

}  // namespace ringroad
