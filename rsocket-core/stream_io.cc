// The program's sends and receives.
#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "rsocket-core/stream_short.h"
#include "rsocket-core/sys.h"

namespace ringroad {
namespace {

// Flags of receives that do more than to take what is there.
constexpr int kRecvMore = MSG_PEEK | MSG_WAITALL | MSG_TRUNC;

std::size_t total_bytes(const iovec* iov, int count) noexcept {
  std::size_t total = 0;
  for (int i = 0; i < count; ++i) total += iov[i].iov_len;
  return total;
}

// Whether a call may sleep, as the open file says when that is asked first, and for the whole call. Where other
// processes have the file too, that takes a system call: it is asked where it matters, and else at once.
class MaySleep {
 public:
  MaySleep(const Stream& stream, int flags, bool shared) noexcept
      : stream_(stream), may_((flags & MSG_DONTWAIT) == 0), asked_(!may_) {
    if (!shared) (*this)();
  }
  bool operator()() noexcept {
    if (!std::exchange(asked_, true)) may_ = !stream_.nonblocking();
    return may_;
  }

 private:
  const Stream& stream_;
  bool may_;
  bool asked_;
};

// Programs have threads with small stacks, and hardly any call has more vectors than the first.
constexpr int kFewVectors = 8;
constexpr int kMostVectors = 64;

// At most `limit` bytes of the vectors after their first `skip` bytes. More vectors than fit are
// left for the next call: a stream may always be read and written in pieces.
template <int vectors>
struct Window {
  iovec iov[std::size_t{vectors}];
  int count = 0;

  Window(const iovec* from, int from_count, std::size_t skip, std::size_t limit) noexcept {
    for (int i = 0; i < from_count && count < vectors && limit > 0; ++i) {
      if (skip >= from[i].iov_len) {
        skip -= from[i].iov_len;
        continue;
      }
      iovec& out = iov[count++];
      out.iov_base = static_cast<char*>(from[i].iov_base) + skip;
      out.iov_len = std::min(from[i].iov_len - skip, limit);
      limit -= out.iov_len;
      skip = 0;
    }
  }
};

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

// All of the vectors: where there is one, by the call for that, which costs the kernel less.
template <auto one, auto many>
ssize_t move_all(int fd, const iovec* iov, int count, int flags) noexcept {
  if (count == 1) return one(fd, iov->iov_base, iov->iov_len, flags);
  msghdr msg{};
  msg.msg_iov = const_cast<iovec*>(iov);
  msg.msg_iovlen = static_cast<std::size_t>(count);
  return many(fd, &msg, flags);
}

// sendmsg(2) or recvmsg(2) of such a window.
template <auto call, int vectors>
[[gnu::noinline]] ssize_t move_window_of(int fd, const iovec* iov, int count, std::size_t skip,
                                         std::size_t limit, int flags) noexcept {
  Window<vectors> window(iov, count, skip, limit);
  msghdr msg{};
  msg.msg_iov = window.iov;
  msg.msg_iovlen = static_cast<std::size_t>(window.count);
  return call(fd, &msg, flags);
}
template <auto call>
ssize_t move_window(int fd, const iovec* iov, int count, std::size_t skip, std::size_t limit,
                    int flags) noexcept {
  return count <= kFewVectors
             ? move_window_of<call, kFewVectors>(fd, iov, count, skip, limit, flags)
             : move_window_of<call, kMostVectors>(fd, iov, count, skip, limit, flags);
}

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

// Calls copy(pointer, bytes) for each contiguous piece of the vectors after `skip`, up to `limit`.
template <typename Copy>
void for_each_piece(const iovec* iov, int count, std::size_t skip, std::size_t limit,
                    Copy copy) noexcept {
  for (int i = 0; i < count && limit > 0; ++i) {
    if (skip >= iov[i].iov_len) {
      skip -= iov[i].iov_len;
      continue;
    }
    const std::size_t n = std::min(iov[i].iov_len - skip, limit);
    copy(static_cast<std::byte*>(iov[i].iov_base) + skip, n);
    limit -= n;
    skip = 0;
  }
}

}  // namespace

void Stream::count(bool sent, bool channel, std::size_t bytes) noexcept {
  stats::Counters& c = slot_->counts.traffic;
  stats::Counters::add(sent ? c.tx_bytes[channel] : c.rx_bytes[channel], bytes);
}

void Stream::count_kernel_io(bool sent, ssize_t result) noexcept {
  if (result <= 0) return;
  stats::Counters& c = slot_->counts.traffic;
  stats::Counters::add(sent ? c.tx_bytes[0] : c.rx_bytes[0], static_cast<std::size_t>(result));
  stats::Counters::add(sent ? c.tx_messages[0] : c.rx_messages[0], 1);
  count_size(sent, static_cast<std::size_t>(result));
}

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
  used_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  sent_last_.store(sent, std::memory_order_relaxed);
}

void Stream::guest_left(bool sent, std::size_t bytes) noexcept {
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
  if (awaited) host_->attend(*this);
  note_use(bytes > 0 ? 1 : 0, 0);
}

void Stream::stall_begins() noexcept {
  stats::Counters::add(slot_->counts.stalls, 1);
  if (standing_.mark(Standing::kStalled)) return;
  const std::int64_t now = sys::now_ns();
  slot_->stalled_since_ns.store(now, std::memory_order_relaxed);
  watch_for_stall();
}

void Stream::stall_ends() noexcept {
  const std::int64_t since = slot_->stalled_since_ns.load(std::memory_order_relaxed);
  const auto waited = static_cast<std::uint64_t>(std::max<std::int64_t>(sys::now_ns() - since, 0));
  slot_->counts.waits.add(stats::wait_units(waited));
  stats::Counters::add(slot_->counts.waited_ns, waited);
  slot_->stalled_since_ns.store(0, std::memory_order_relaxed);
  standing_.unmark(Standing::kStalled);
}

void Stream::note_use(std::size_t messages, std::size_t bytes) noexcept {
  if (role_ != StreamRole::kConnect || promotion_asked_.load(std::memory_order_relaxed)) return;
  const std::uint64_t uses = uses_.fetch_add(messages, std::memory_order_relaxed) + messages;
  const std::uint64_t used = used_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (uses < config_.promote_messages && used < config_.promote_bytes &&
      !promote_now_.load(std::memory_order_relaxed)) {
    return;
  }
  if (uses < retry_at_uses_.load(std::memory_order_relaxed)) return;
  if (const std::int64_t at = retry_at_ns_.load(std::memory_order_relaxed); at != 0) {
    if (sys::now_ns() < at) return;
  }
  if (guests_.load(std::memory_order_acquire) != 0) return;  // the last one that leaves comes here
  if (promotion_asked_.exchange(true, std::memory_order_acq_rel)) return;
  host_->start_promotion(*this);
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
  const signals::Later whole;  // a handler sends before it or after it, not in between its pieces
  if (count_iov == 1) {
    const ssize_t sent = send_short(iov->iov_base, iov->iov_len);
    return sent > 0 ? sent : send_long(iov, 1, flags, sleep);
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
      by_channel = tx_ == Tx::kChannel;
      held = tx_holds();
      if (r.step == Step::kDone) {
        count(true, by_channel, r.bytes);
        if (done == 0) {
          stats::Counters::add(slot_->counts.traffic.tx_messages[by_channel], 1);
        }
        if (done + r.bytes >= total) count_size(true, total);
        if (standing_.is(Standing::kStalled)) stall_ends();
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
    const int error = tx_ == Tx::kTcp ? pending_error(fd()) : 0;
    return {Step::kError, 0, error != 0 ? error : EPIPE};
  }
  switch (tx_) {
    case Tx::kTcp: {
      if (!kernel_takes_bytes()) return {Step::kWouldBlock, 0, 0};
      const int kernel_flags = flags | MSG_DONTWAIT | MSG_NOSIGNAL;
      const ssize_t n = skip == 0 ? move_all<sys::send, sys::sendmsg>(fd(), iov, count_iov, kernel_flags)
                                  : move_window<sys::sendmsg>(fd(), iov, count_iov, skip, kNoLimit, kernel_flags);
      if (n < 0) {
        return kernel_refused(skip);
      }
      tcp_tx_ += static_cast<std::uint64_t>(n);
      if (n > 0) wrote_since_freeze_ = true;
      return {Step::kDone, static_cast<std::size_t>(n), 0};
    }
    case Tx::kChannel: {
      if (fin_at_ == kNoBoundary && channel_->control_may_wait()) {
        channel_->progress();
        if (channel_->control_pending()) return {Step::kService, 0, 0};
      }
      // It may wait for this program to read before its connection ends: finish_linger().
      if (peer_closed() || (standing_.is(Standing::kPeerClosing) && fin_at_ != kNoBoundary)) {
        // As the kernel has it: the first send after the peer's close is taken, its reset makes
        // the next one fail.
        if (sent_after_peer_closed_) return {Step::kError, 0, EPIPE};
        if (total_bytes(iov, count_iov) == skip) return {Step::kDone, 0, 0};
        sent_after_peer_closed_ = true;
        shutdowns_.fetch_add(1, std::memory_order_relaxed);
        standing_.set_error(EPIPE);
        waiters_.wake(POLLIN | POLLOUT);
        return {Step::kDone, total_bytes(iov, count_iov) - skip, 0};
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
      for_each_piece(iov, count_iov, skip, limit, [&](const std::byte* from, std::size_t n) {
        std::memcpy(to, from, n);
        to += n;
      });
      const auto n = static_cast<std::size_t>(to - view.data);
      if (n > 0) channel_->commit(n);
      if (channel_->tx_posted() != channel_->tx_head()) {
        // Message credits are out. What they bring back may be here already; otherwise the agent
        // sends the rest when they come, as the program may not call again.
        channel_->progress();
        channel_->flush();
        if (channel_->tx_posted() != channel_->tx_head()) host_->attend(*this);
      }
      return {Step::kDone, n, 0};
    }
    case Tx::kDead:
      return {Step::kError, 0, EPIPE};
    case Tx::kFrozen:
    case Tx::kToken:
    case Tx::kReplay:
      if (sent_after_peer_closed_) return {Step::kError, 0, EPIPE};
      break;
  }
  return {Step::kWouldBlock, 0, 0};
}

// ---- Receiving

Stream::Source Stream::source() const noexcept {
  if (gave_back_ && state() == State::kReset) return Source::kRing;
  if (boundary_ == kNoBoundary) {
    if (state() == State::kReset) return Source::kRing;
    if (remembers()) return again_unread() ? Source::kAgain : Source::kNothing;
    return Source::kTcp;
  }
  if (tcp_rx_ < boundary_) return Source::kTcpUpToBoundary;
  if (remembers() && state() != State::kReset) {
    return again_unread() ? Source::kAgain : Source::kNothing;
  }
  if (channel_ != nullptr && token_seen_ && !resume_sent_) return Source::kRing;
  return state() == State::kReset ? Source::kRing : Source::kNothing;
}

void Stream::skip_verified() noexcept {
  while (verified_ > 0 && tcp_rx_ == boundary_) {
    std::uint8_t scratch[kTokenBytes + kResumeBytes];
    const ssize_t n = sys::recv(fd(), scratch, std::min(verified_, sizeof scratch), MSG_DONTWAIT);
    if (n <= 0) return;  // it was peeked at, so it is there; an error shows up elsewhere
    tcp_rx_ += static_cast<std::uint64_t>(n);
    boundary_ += static_cast<std::uint64_t>(n);
    frames_rx_ += static_cast<std::uint64_t>(n);
    verified_ -= static_cast<std::size_t>(n);
    // What comes next comes from elsewhere: who waits for a change must look.
    if (verified_ == 0) waiters_.wake(POLLIN);
  }
  if (verified_ == 0 && tcp_rx_ == boundary_ && resume_seen_ && take_come_back()) {
    boundary_ = kNoBoundary;
    waiters_.wake(POLLIN | POLLOUT);  // see settled()
    host_->attend(*this);             // perhaps the kernel has the stream for good now
  }
  if (boundary_ == kNoBoundary && remembers() && !is_over()) drop_what_came_again();
}

ssize_t Stream::recv(const iovec* iov, int count_iov, int flags) noexcept {
  const signals::Later whole;
  if (count_iov == 1 && (flags & kRecvMore) == 0) {
    const ssize_t taken = recv_short(iov->iov_base, iov->iov_len);
    return taken > 0 ? taken : recv_long(iov, 1, flags);
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
        if (done > 0 && errno != ECANCELED) break;
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
      if (shut_rd_ || again_ends_) {
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
    if (skip == 0) stats::Counters::add(slot_->counts.traffic.rx_messages[by_channel], 1);
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
  if ((flags & MSG_PEEK) != 0 && limit != kNoLimit && resume_seen_) {
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
    host_->attend(*this);
  }
  if ((flags & MSG_PEEK) != 0 && n > 0 && static_cast<std::uint64_t>(n) == limit &&
      channel_ != nullptr && token_seen_ && !resume_sent_) {
    // What has come over the channel meanwhile stands behind it.
    const auto seen = static_cast<std::size_t>(n);
    const IoResult more = recv_ring(iov, count_iov, skip + seen, flags);
    return {Step::kDone, more.step == Step::kDone ? seen + more.bytes : seen, 0};
  }
  if (boundary_ != kNoBoundary && (tcp_rx_ == boundary_ || !answered_)) {
    host_->attend(*this);  // the frames behind it, or our answer, may be waiting for this
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
    for_each_piece(iov, count_iov, skip, n, [&](std::byte* to, std::size_t piece) {
      std::memcpy(to, from, piece);
      from += piece;
    });
  }
  if ((flags & MSG_PEEK) == 0 && n > 0) channel_->consume(n);
  return {Step::kDone, n, 0};
}

}  // namespace ringroad
