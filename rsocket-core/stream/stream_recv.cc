// The program's receives.
#include <algorithm>
#include <cstring>
#include <utility>

#include "rsocket-core/base/faults.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/stream_fastpath.h"
#include "rsocket-core/stream/stream_vectors.h"

namespace ringroad {
namespace {

// Flags of receives that do more than to take what is there.
constexpr int kRecvMore = MSG_PEEK | MSG_WAITALL | MSG_TRUNC;

// The program's bytes before and behind the frames, `frames` bytes of them, that end with the peer's RESUME.
template <int vectors>
[[gnu::noinline]] ssize_t peek_over(int fd, const iovec* iov, int count, std::size_t skip,
                                    std::size_t limit, std::size_t frames, int flags) noexcept {
  const Window<vectors> before(iov, count, skip, limit);
  const Window<vectors> behind(iov, count, skip + limit, kNoLimit);
  std::uint8_t passed[kTokenBytes + kResumeBytes];
  iovec all[2 * std::size_t{vectors} + 1];
  iovec* end = std::copy(before.iov, before.iov + before.count, all);
  *end++ = {passed, std::min(frames, sizeof passed)};
  end = std::copy(behind.iov, behind.iov + behind.count, end);
  msghdr msg{};
  msg.msg_iov = all;
  // Where the vectors before the frames are too many or too short for all that stands there, only
  // those.
  const bool whole = total_bytes(before.iov, before.count) == limit;
  msg.msg_iovlen =
      whole ? static_cast<std::size_t>(end - all) : static_cast<std::size_t>(before.count);
  return sys::recvmsg(fd, &msg, flags);
}

}  // namespace

ssize_t Stream::recv(const iovec* iov, int count_iov, int flags) noexcept {
  const signals::DeferHandlers whole;
  if (count_iov == 1 && (flags & kRecvMore) == 0) {
    const ssize_t taken = recv_short(iov->iov_base, iov->iov_len);
    return mostly(taken > 0) ? taken : recv_long(iov, 1, flags);
  }
  return recv_long(iov, count_iov, flags);
}

ssize_t Stream::recv_long(const iovec* iov, int count_iov, int flags) noexcept {
  touch();
  const int saved_errno = errno;
  const std::size_t total = total_bytes(iov, count_iov);
  const bool shared = shared_.load(std::memory_order_relaxed);
  MaySleep may_sleep(*this, flags, shared);
  const bool fill = (flags & MSG_WAITALL) != 0 && (flags & MSG_PEEK) == 0;
  constexpr int kPeekAll = MSG_PEEK | MSG_WAITALL;
  if ((flags & kPeekAll) == kPeekAll && may_sleep()) return peek_all(iov, count_iov, flags);
  std::size_t done = 0;
  std::int64_t deadline = 0;
  bool polled = count_iov == 1 && (flags & kRecvMore) == 0 && short_enough(total) &&
                state() == State::kOnChannel && may_sleep();
  signals::begin_wait();
  if (polled && may_spin(POLLIN)) {
    deadline = io_deadline(false);
    ShortReceive receive{iov->iov_base, total};
    spin_until_ready(POLLIN, deadline, {}, &receive);
    if (receive.taken > 0) {
      errno = saved_errno;
      return static_cast<ssize_t>(receive.taken);
    }
  }
  bool serviced = false;
  bool sized = false;
  // What answers a send is not there yet: one question to the kernel less.
  bool sleep_first = sent_last_.exchange(false, std::memory_order_relaxed) && total > 0 &&
                     state() == State::kOnTcp && !shared && may_sleep();
  for (;;) {
    IoResult r;
    if (!std::exchange(sleep_first, false)) {
      MutexLock lock(rx_mutex_);
      r = try_recv(iov, count_iov, done, flags);
      // More may come of this call only where that is to fill the buffers, or goes on elsewhere.
      const bool last = done + r.bytes >= total || (!fill && !r.more_elsewhere);
      if (last && r.bytes > 0 && (flags & MSG_PEEK) == 0) {
        count_size(false, done + r.bytes);
        sized = true;
      }
    }
    // Once: what is there may be a frame of the peer's and bytes behind it.
    if (r.between_carriers && !std::exchange(serviced, true)) r.step = Step::kService;
    if (r.step == Step::kDone) {
      done += r.bytes;
      if (r.bytes == 0 || done >= total) break;
      if (!fill) {
        // The kernel would give in one call what has arrived by now, whatever carried it.
        if (!r.more_elsewhere) break;
        MutexLock lock(rx_mutex_);
        r = try_recv(iov, count_iov, done, flags);
        if (r.step == Step::kDone) done += r.bytes;
        break;
      }
    } else if (r.step == Step::kService) {
      service();
    } else if (r.step == Step::kError) {
      if (done > 0) break;
      errno = r.error;
      return -1;
    } else {
      if (!may_sleep()) {
        if (done > 0) break;
        errno = EAGAIN;
        return -1;
      }
      if (deadline == 0) deadline = io_deadline(false);
      if (!sleep_until_ready(POLLIN, deadline, done == 0, Sleep::kCancellable,
                             std::exchange(polled, false))) {
        // Of nothing that is asked for the kernel says so whatever has ended the sleep.
        if ((done > 0 || total == 0) && errno != ECANCELED) break;
        return -1;
      }
    }
  }
  if (done > 0 && (flags & MSG_PEEK) == 0) {
    if (!sized) {
      MutexLock lock(rx_mutex_);
      count_size(false, done);
    }
    note_use(1, done);
  }
  errno = saved_errno;
  return static_cast<ssize_t>(done);
}

Stream::IoResult Stream::try_recv(const iovec* iov, int count_iov, std::size_t skip,
                                  int flags) noexcept {
  skip_verified();
  IoResult r;
  bool by_channel = false;
  switch (source()) {
    case Source::kTcp:
    case Source::kTcpUpToBoundary:
      r = recv_tcp(iov, count_iov, skip, flags);
      break;
    case Source::kRing:
      r = recv_ring(iov, count_iov, skip, flags);
      by_channel = true;
      break;
    case Source::kAgain:
      r = recv_again(iov, count_iov, skip, flags);
      by_channel = true;
      if ((flags & MSG_PEEK) == 0) skip_verified();
      break;
    case Source::kNothing:
      if (shut_rd_ || again_.ends) {
        r.step = Step::kDone;
      } else if (is_over()) {
        const int error = tell_error(skip);
        r = {error != 0 ? Step::kError : Step::kDone, 0, error};
      } else {
        r.between_carriers = true;
      }
      break;
  }
  if (r.step == Step::kDone && r.bytes > 0 && (flags & MSG_PEEK) == 0) {
    count(false, by_channel, r.bytes);
    if (skip == 0) count_message(false, by_channel);
  }
  return r;
}

ssize_t Stream::peek_over_frames(const iovec* iov, int count_iov, std::size_t skip,
                                 std::size_t limit, int flags) noexcept {
  const ssize_t n =
      count_iov <= kFewVectors
          ? peek_over<kFewVectors>(fd(), iov, count_iov, skip, limit, verified_, flags)
          : peek_over<kMostVectors>(fd(), iov, count_iov, skip, limit, verified_, flags);
  const auto most = static_cast<ssize_t>(limit);
  return n <= most ? n : n - std::min(n - most, static_cast<ssize_t>(verified_));
}

Stream::IoResult Stream::recv_tcp(const iovec* iov, int count_iov, std::size_t skip,
                                  int flags) noexcept {
  const std::size_t limit = boundary_ == kNoBoundary ? kNoLimit : boundary_ - tcp_rx_;
  ssize_t n;
  const int kernel_flags = (flags & (MSG_PEEK | MSG_TRUNC)) | MSG_DONTWAIT;
  if ((flags & MSG_PEEK) != 0 && limit != kNoLimit && protocol_.resume_seen()) {
    n = peek_over_frames(iov, count_iov, skip, limit, kernel_flags);
  } else if (skip == 0 && limit == kNoLimit) {
    n = move_all<sys::recv, sys::recvmsg>(fd(), iov, count_iov, kernel_flags);
  } else {
    n = move_window<sys::recvmsg>(fd(), iov, count_iov, skip, limit, kernel_flags);
  }
  if (n < 0) {
    if (errno != EAGAIN) return kernel_refused(skip);
    // What the kernel does not know, or not any more.
    if (const int error = tell_error(skip); error != 0) return {Step::kError, 0, error};
    return {shut_rd_ ? Step::kDone : Step::kWouldBlock, 0, 0};
  }
  if (n == 0 && standing_.error() != 0 &&
      (total_bytes(iov, count_iov) > skip || unread_on_tcp() == 0)) {
    // A reset that scan_frames() took from the kernel, behind all that had arrived.
    return {Step::kError, 0, tell_error(skip)};
  }
  if (n == 0 && limit != kNoLimit && total_bytes(iov, count_iov) > skip) {
    // The connection ended where more had been announced: for service() to judge.
    return is_over() ? IoResult{Step::kDone, 0, 0} : IoResult{Step::kService, 0, 0};
  }
  if ((flags & MSG_PEEK) == 0) tcp_rx_ += static_cast<std::uint64_t>(n);
  if (tell_when_read_ && (flags & MSG_PEEK) == 0) {
    tell_when_read_ = false;
    read_since_asked_ = true;
    attend();
  }
  if ((flags & MSG_PEEK) != 0 && n > 0 && static_cast<std::uint64_t>(n) == limit &&
      channel_ != nullptr && protocol_.token_seen() && !protocol_.resume_sent()) {
    // What has come over the channel meanwhile stands behind it.
    const auto seen = static_cast<std::size_t>(n);
    const IoResult more = recv_ring(iov, count_iov, skip + seen, flags);
    return {Step::kDone, more.step == Step::kDone ? seen + more.bytes : seen, 0};
  }
  if (boundary_ != kNoBoundary && (tcp_rx_ == boundary_ || !protocol_.promised())) {
    attend();  // the frames behind it, or our answer, may be waiting for this
  }
  if (n > 0 && (flags & MSG_PEEK) == 0 && boundary_ == kNoBoundary) came_again_ = true;
  const bool reached = (flags & MSG_PEEK) == 0 && boundary_ != kNoBoundary && tcp_rx_ == boundary_;
  return {Step::kDone, static_cast<std::size_t>(n), 0, reached && n > 0};
}

Stream::IoResult Stream::recv_ring(const iovec* iov, int count_iov, std::size_t skip,
                                   int flags) noexcept {
  Channel::View view;
  const bool believed = ring_is_next();
  if (again_unread()) return recv_again(iov, count_iov, skip, flags);
  const std::size_t wanted = total_bytes(iov, count_iov) - skip;
  if (believed) {
    view = channel_->rx_view();
    // A poll, or the agent, may have looked when less had come.
    if (view.size == 0 || view.size < wanted) {
      channel_->progress();
      view = channel_->rx_view();
    }
    // Of a connection that is over nobody takes them.
    if (view.size == 0 && channel_->control_pending() && !is_over()) return {Step::kService, 0, 0};
  }
  if (view.size == 0) {
    const bool ended =
        believed && fin_at_ != kNoBoundary && channel_->rx_consumed() >= fin_at_;
    // In the kernel's order: the peer's end, a reset, our own shutdown.
    if (ended || peer_closed()) return {Step::kDone, 0, 0};
    if (const int error = tell_error(skip); error != 0) return {Step::kError, 0, error};
    if (shut_rd_ || state() == State::kReset) return {Step::kDone, 0, 0};
    if (channel_->failed()) return {is_over() ? Step::kDone : Step::kService, 0, 0};
    return {Step::kWouldBlock, 0, 0};
  }
  const std::size_t n = std::min(wanted, view.size);
  if ((flags & MSG_TRUNC) == 0) {
    const std::byte* from = view.data;
    const bool whole = for_each_piece(iov, count_iov, skip, n, [&](std::byte* to, std::size_t piece) {
      if (!faults::copy(to, from, piece)) return false;
      from += piece;
      return true;
    });
    if (!whole) return {Step::kError, 0, EFAULT};
  }
  if ((flags & MSG_PEEK) == 0 && n > 0) channel_->consume(n);
  return {Step::kDone, n, 0};
}

// As recv_ring(). REQUIRES: some is left.
Stream::IoResult Stream::recv_again(const iovec* iov, int count, std::size_t skip,
                                    int flags) noexcept {
  std::size_t n = 0;
  std::size_t left = again_.copy.filled - again_.copy.sent;
  for (int i = 0; i < count && left > 0; ++i) {
    const std::size_t passed = std::min(skip, iov[i].iov_len);
    const std::size_t piece = std::min(iov[i].iov_len - passed, left);
    skip -= passed;
    if ((flags & MSG_TRUNC) == 0 && piece > 0) {
      if (!faults::copy(static_cast<char*>(iov[i].iov_base) + passed,
                        &again_.copy.bytes[again_.copy.sent + n], piece)) {
        return {Step::kError, 0, EFAULT};
      }
    }
    n += piece;
    left -= piece;
  }
  if ((flags & MSG_PEEK) == 0) again_.copy.sent += n;
  return {Step::kDone, n, 0, n > 0 && !again_unread()};
}

}  // namespace ringroad
