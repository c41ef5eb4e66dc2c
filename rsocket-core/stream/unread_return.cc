// Bytes from before a switch that the program has not read when the stream goes back to TCP.
//
//   our kernel, unread:  | program's bytes | TOKEN |            a process without the library, a child
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

#include "rsocket-core/base/sys.h"
#include "rsocket-core/net/tcp_counters.h"
#include "rsocket-core/stream/stream.h"

namespace ringroad {

// Everything before the peer's token, which has been seen there, so all of it is here. What is given
// back; 0: nothing is unread, or there is no memory, and it stays where it is.
std::uint32_t StreamTransitions::take_back() noexcept {
  if (boundary_ == kNoBoundary || !protocol_.token_seen() || tcp_rx_ >= boundary_) return 0;
  const std::uint64_t unread = boundary_ - tcp_rx_;
  if (unread > kMaxPeekBytes) return 0;
  const auto n = static_cast<std::size_t>(unread);
  given_back_ = ReturnBuffer(new (std::nothrow) std::uint8_t[n], n);
  if (given_back_.bytes == nullptr) {
    given_back_ = ReturnBuffer();
    return 0;
  }
  for (std::size_t taken = 0; taken < n;) {
    const ssize_t got = sys::recv(fd(), given_back_.bytes.get() + taken, n - taken, MSG_DONTWAIT);
    if (got <= 0) {
      given_back_ = ReturnBuffer();
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
bool StreamTransitions::expect_back(std::uint32_t n) noexcept {
  if (n == 0) return true;
  // Only one that has seen our token knows that we will write them again.
  if (n > kMaxPeekBytes || !protocol_.token_sent()) return false;
  come_back_ = ReturnBuffer(new (std::nothrow) std::uint8_t[n], n);
  return come_back_.bytes != nullptr;
}

// Takes in what has come of them. True: all.
bool StreamTransitions::take_come_back() noexcept {
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
bool StreamTransitions::push_return_buffer(ReturnBuffer& passage) noexcept {
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
void StreamTransitions::keep_what_is_here() noexcept {
  take_in_channel();  // a write may be the first to tell of the end
  if (channel_ == nullptr || state() != State::kResuming) return;
  const std::uint64_t end = fin_at_ != kNoBoundary ? fin_at_ : left_fin_at_;
  if (!protocol_.token_seen() || (protocol_.resume_seen() && came_again_) || channel_->rx_head() != end)
    return;
  if (gave_back_) {
    if (given_back_.filled == 0) return;
    again_.copy = std::exchange(given_back_, ReturnBuffer());
    again_.copy.sent = 0;
    gave_back_ = false;
  }
  fin_at_ = end;
}

// What is given back, and behind it the ring's. Without memory for it the program waits for it to come again.
void StreamTransitions::remember_unread() noexcept {
  again_.copy = ReturnBuffer();
  again_.dropped = again_.of_ring = 0;
  again_.ends = protocol_.token_seen() && left_fin_at_ == channel_->rx_head();
  if (!protocol_.token_seen()) return;
  const Channel::View ring = channel_->rx_view();
  const std::size_t first = given_back_.filled;
  if (first + ring.size == 0) return;
  ReturnBuffer copy(new (std::nothrow) std::uint8_t[first + ring.size], first + ring.size);
  if (copy.bytes == nullptr) {
    again_.ends = false;
    return;
  }
  if (first > 0) std::memcpy(copy.bytes.get(), given_back_.bytes.get(), first);
  std::memcpy(copy.bytes.get() + first, ring.data, ring.size);
  copy.filled = copy.size;
  again_.copy = std::move(copy);
  again_.of_ring = ring.size;
  gave_back_ = false;
}

void StreamTransitions::forget_again() noexcept {
  // Where the program stands in the ring is known only while the copy says so.
  if (again_.copy.sent > 0 && again_.copy.sent < again_.copy.filled) came_again_ = true;
  if (again_.copy.sent == 0) again_.of_ring = 0;
  again_.copy = ReturnBuffer();
  again_.dropped = 0;
  again_.ends = false;
  if (std::exchange(tell_when_read_, false)) read_since_asked_ = true;
  waiters_.wake(POLLIN | POLLOUT);
  attend();
}

// REQUIRES: the peer's bytes on TCP are its program's, or nothing comes any more.
void StreamTransitions::drop_what_came_again() noexcept {
  while (!kernel_is_level()) {
    const ssize_t n =
        sys::recv(fd(), nullptr, again_.copy.sent - again_.dropped, MSG_TRUNC | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {  // it ends before they have come
      if (n < 0) standing_.set_error(errno);
      again_.dropped = again_.copy.sent;
      break;
    }
    again_.dropped += static_cast<std::size_t>(n);
    tcp_rx_ += static_cast<std::uint64_t>(n);
    frames_rx_ += static_cast<std::uint64_t>(n);
  }
  if (again_unread()) {
    // While the stream returns the ring may still be what is left.
    int in_kernel = 0;
    if (state() != State::kOnTcp || sys::ioctl(fd(), SIOCINQ, &in_kernel) != 0 ||
        static_cast<std::size_t>(in_kernel) < again_.copy.filled - again_.copy.sent) {
      return;
    }
  } else if (again_.ends && !tcp_peer_ended(fd())) {
    again_.copy = ReturnBuffer();
    again_.dropped = 0;
    return;
  }
  forget_again();
}

bool Stream::kernel_can_serve() noexcept {
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  switch (state()) {
    case State::kOnTcp:
    case State::kConnecting:
      return boundary_ == kNoBoundary && !protocol_.gave_up() && !frames_wait() && kernel_is_level();
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
  attend();
  errno = saved;
}

}  // namespace ringroad
