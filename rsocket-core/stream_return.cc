// Bytes from before a switch that the program has not read when the stream goes back to TCP.
//
//   our kernel, unread:  | program's bytes | TOKEN |            who reads on without the library, a child
//                        | given back      |                    or another program, would read the frames
//
//   we write   RESUME{given back = n} n bytes      the peer writes them again, and then its replay
//
// Only the end that connected has such bytes: the other answers SWITCH when nothing is unread.
//
// They come again over TCP, and so do those in the ring, but a program that was told of them may ask for them
// before. So this end remembers what is unread, and its program reads that; what it has read so is dropped as
// it comes again.
//
//   again_:        | read by the program  .sent | unread                 .filled |
//   our kernel:    | again_dropped_ | to be dropped | what is unread ... | what follows
//
// Once the kernel has all that is unread, and nothing that is read, the copy is forgotten: the
// program, and any other that has the socket, reads on there.
#include <linux/sockios.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "rsocket-core/stream.h"
#include "rsocket-core/sys.h"
#include "rsocket-core/tcp_counters.h"

namespace ringroad {

// Everything before the peer's token, which has been seen there, so all of it is here. What is given
// back; 0: nothing is unread, or there is no memory, and it stays where it is.
std::uint32_t Stream::take_back() noexcept {
  if (boundary_ == kNoBoundary || !token_seen_ || tcp_rx_ >= boundary_) return 0;
  const std::uint64_t unread = boundary_ - tcp_rx_;
  if (unread > kMaxPeekBytes) return 0;
  const auto n = static_cast<std::size_t>(unread);
  given_back_ = Passage(new (std::nothrow) std::uint8_t[n], n);
  if (given_back_.bytes == nullptr) {
    given_back_ = Passage();
    return 0;
  }
  for (std::size_t taken = 0; taken < n;) {
    const ssize_t got = sys::recv(fd(), given_back_.bytes.get() + taken, n - taken, MSG_DONTWAIT);
    if (got <= 0) {
      given_back_ = Passage();
      gave_back_ = taken > 0;
      if (taken > 0) break_connection(ECONNRESET, Reason::kPeerGone);
      return 0;
    }
    taken += static_cast<std::size_t>(got);
    tcp_rx_ += static_cast<std::uint64_t>(got);
  }
  given_back_.filled = n;
  gave_back_ = true;
  return static_cast<std::uint32_t>(n);
}

// The peer's RESUME says that it gives `n` bytes of ours back: they follow. False: a lie, or no memory.
bool Stream::expect_back(std::uint32_t n) noexcept {
  if (n == 0) return true;
  // Only one that has seen our token knows that we will write them again.
  if (n > kMaxPeekBytes || !token_sent_) return false;
  come_back_ = Passage(new (std::nothrow) std::uint8_t[n], n);
  return come_back_.bytes != nullptr;
}

// Takes in what has come of them. True: all.
bool Stream::take_come_back() noexcept {
  while (come_back_.filled < come_back_.size) {
    const ssize_t got = sys::recv(fd(), come_back_.bytes.get() + come_back_.filled,
                                  come_back_.size - come_back_.filled, MSG_DONTWAIT);
    if (got <= 0) return false;
    come_back_.filled += static_cast<std::size_t>(got);
    tcp_rx_ += static_cast<std::uint64_t>(got);
    boundary_ += static_cast<std::uint64_t>(got);
    frames_rx_ += static_cast<std::uint64_t>(got);
  }
  return true;
}

// Writes what it can of a passage. True: nothing is left.
bool Stream::push_passage(Passage& passage) noexcept {
  while (passage.sent < passage.filled) {
    const ssize_t n = sys::send(fd(), passage.bytes.get() + passage.sent,
                                passage.filled - passage.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      if (errno != EAGAIN && errno != EINTR) break_connection(errno, Reason::kPeerGone);
      return false;
    }
    passage.sent += static_cast<std::size_t>(n);
    tcp_tx_ += static_cast<std::uint64_t>(n);
  }
  return true;
}

// The connection ends while we return to TCP. If the peer had closed before, our RESUME finds nobody
// and all that would come again is here: what we have given back, and behind it the ring.
void Stream::keep_what_is_here() noexcept {
  take_in_channel();  // a write may be the first to tell of the end
  if (channel_ == nullptr || state() != State::kResuming) return;
  const std::uint64_t end = fin_at_ != kNoBoundary ? fin_at_ : left_fin_at_;
  if (!token_seen_ || (resume_seen_ && came_again_) || channel_->rx_head() != end) return;
  if (gave_back_) {
    if (given_back_.filled == 0) return;
    again_ = std::exchange(given_back_, Passage());
    again_.sent = 0;
    gave_back_ = false;
  }
  fin_at_ = end;
}

// What is given back, and behind it the ring's. Without memory for it the program waits for it to come again.
void Stream::remember_unread() noexcept {
  again_ = Passage();
  again_dropped_ = again_of_ring_ = 0;
  again_ends_ = token_seen_ && left_fin_at_ == channel_->rx_head();
  if (!token_seen_) return;
  const Channel::View ring = channel_->rx_view();
  const std::size_t first = given_back_.filled;
  if (first + ring.size == 0) return;
  Passage copy(new (std::nothrow) std::uint8_t[first + ring.size], first + ring.size);
  if (copy.bytes == nullptr) {
    again_ends_ = false;
    return;
  }
  if (first > 0) std::memcpy(copy.bytes.get(), given_back_.bytes.get(), first);
  std::memcpy(copy.bytes.get() + first, ring.data, ring.size);
  copy.filled = copy.size;
  again_ = std::move(copy);
  again_of_ring_ = ring.size;
  gave_back_ = false;
}

void Stream::forget_again() noexcept {
  // Where the program stands in the ring is known only while the copy says so.
  if (again_.sent > 0 && again_.sent < again_.filled) came_again_ = true;
  if (again_.sent == 0) again_of_ring_ = 0;
  again_ = Passage();
  again_dropped_ = 0;
  again_ends_ = false;
  if (std::exchange(tell_when_read_, false)) read_since_asked_ = true;
  waiters_.wake(POLLIN | POLLOUT);
  host_->attend(*this);
}

// REQUIRES: the peer's bytes on TCP are its program's, or nothing comes any more.
void Stream::drop_what_came_again() noexcept {
  while (!kernel_is_level()) {
    const ssize_t n =
        sys::recv(fd(), nullptr, again_.sent - again_dropped_, MSG_TRUNC | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {  // it ends before they have come
      if (n < 0) standing_.set_error(errno);
      again_dropped_ = again_.sent;
      break;
    }
    again_dropped_ += static_cast<std::size_t>(n);
    tcp_rx_ += static_cast<std::uint64_t>(n);
    frames_rx_ += static_cast<std::uint64_t>(n);
  }
  if (again_unread()) {
    // While the stream returns the ring may still be what is left.
    int in_kernel = 0;
    if (state() != State::kOnTcp || sys::ioctl(fd(), SIOCINQ, &in_kernel) != 0 ||
        static_cast<std::size_t>(in_kernel) < again_.filled - again_.sent) {
      return;
    }
  } else if (again_ends_ && !tcp_peer_ended(fd())) {
    again_ = Passage();
    again_dropped_ = 0;
    return;
  }
  forget_again();
}

// As recv_ring(). REQUIRES: some is left.
Stream::IoResult Stream::recv_again(const iovec* iov, int count, std::size_t skip,
                                    int flags) noexcept {
  std::size_t n = 0;
  std::size_t left = again_.filled - again_.sent;
  for (int i = 0; i < count && left > 0; ++i) {
    const std::size_t passed = std::min(skip, iov[i].iov_len);
    const std::size_t piece = std::min(iov[i].iov_len - passed, left);
    skip -= passed;
    if ((flags & MSG_TRUNC) == 0 && piece > 0) {
      std::memcpy(static_cast<char*>(iov[i].iov_base) + passed,
                  &again_.bytes[again_.sent + n], piece);
    }
    n += piece;
    left -= piece;
  }
  if ((flags & MSG_PEEK) == 0) again_.sent += n;
  return {Step::kDone, n, 0, n > 0 && !again_unread()};
}

bool Stream::kernel_can_serve() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  switch (state()) {
    case State::kOnTcp:
    case State::kConnecting:
      return boundary_ == kNoBoundary && !gave_up_ && !frames_wait() && kernel_is_level();
    case State::kReset: {
      // Nobody writes again what is here, and in the kernel frames may stand behind what is unread.
      int in_kernel = 0;
      return channel_ != nullptr && fin_at_ != kNoBoundary && channel_->rx_consumed() >= fin_at_ &&
             !gave_back_ && !again_unread() &&
             sys::ioctl(fd(), SIOCINQ, &in_kernel) == 0 && in_kernel == 0;
    }
    default:
      return state() == State::kClosed;
  }
}

void Stream::cut_unless_served() noexcept {
  if (kernel_can_serve()) return;
  const int saved = errno;
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    // connect(2): such a socket is nobody's any more, and says ECONNRESET or ENOTCONN.
    sockaddr nobody{};
    nobody.sa_family = AF_UNSPEC;
    sys::connect(fd(), &nobody, sizeof nobody);
    break_connection(ECONNRESET, reason());
  }
  host_->attend(*this);
  errno = saved;
}

}  // namespace ringroad
