// What reaches the kernel past the library: io_uring, system calls that are no calls of libc's, a plug-in that
// has libc to itself. Two things can be seen of it.
//
//   waiting     A stream is promoted when the program has waited for it by a call that came through here, or
//               nothing says that it waits by another. One that nevertheless got a channel is watched: if bytes
//               come and nobody takes them, it leaves.
//   moving      The kernel's counters differ from the library's: no promotion. On a channel, bytes that the
//               peer's library has not written come over TCP: it leaves.
//
// Somebody may be reading the TCP socket then, so no frame may be written there. The end that leaves says so by
// one message on the channel, LEFT, and is on TCP at once; the other follows when it finds that:
//
//   LEFT{value = what my program has read, consumed = what yours has}    I write the rest of mine to TCP now
//
// That takes shared memory, where each end knows what the other's program has consumed.
#include <linux/sockios.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "rsocket-core/stream.h"
#include "rsocket-core/sys.h"
#include "rsocket-core/tcp_counters.h"

namespace ringroad {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
// Until what the two programs have not read of the rings is looked at again, and until nobody reads it any more.
constexpr std::int64_t kLookAgainNs = 2'000'000;
constexpr std::int64_t kPatienceNs = 200'000'000;
// Until bytes that begin as a frame does are none.
constexpr std::int64_t kWholeFrameNs = 50'000'000;

}  // namespace

bool Stream::is_awaited() const noexcept {
  return awaited_.load(std::memory_order_relaxed);
}

// kNone, or why it is not promoted now. May read files of /proc: no lock is held.
Reason Stream::why_unseen() noexcept {
  if (!host_->sees_waits() || is_awaited()) return Reason::kNone;
  if (suspected_ || goes_past_.load(std::memory_order_relaxed)) return Reason::kUnseenWait;
  // Of one that has not been used there is nothing to be seen yet.
  if ((!nonblocking() && !touched()) || !host_->waits_past(*this)) return Reason::kNone;
  if (is_awaited()) return Reason::kNone;  // by now: that is the call that was found
  note_goes_past();
  return Reason::kUnseenWait;
}

// ---- Leaving

bool Stream::may_leave_by_message() const noexcept {
  return state() == State::kOnChannel && channel_->outlives_peer() && !channel_->failed() &&
         channel_->agreement().has(Feature::kLeft) && !peer_closed() && verified_ == 0 &&
         tcp_rx_ == boundary_ && !frames_wait();
}

// What both ends of such a return do. `peer_consumed_` says from where on our ring goes to TCP.
void Stream::begin_return(Reason reason) noexcept {
  leave_reason_ = reason;
  step(StreamEvent::kLeave, reason);
  tx_ = Tx::kReplay;
  resume_sent_ = resume_seen_ = true;
  // What is in the ring unread comes again over TCP, and so does the end.
  owed_ = channel_->rx_head() - channel_->rx_consumed();
  gave_back_ = came_again_ = false;
  left_at_ns_.store(sys::now_ns(), std::memory_order_relaxed);
  left_fin_at_ = std::exchange(fin_at_, kNoBoundary);
  deadline_ns_ = app_closed_ ? sys::now_ns() + kLingerTimeoutNs : kForever;
  past_at_ns_ = kForever;
  past_since_ns_ = 0;
  unseen_ = false;
  reset_if_killed(true);
  if (owed_ > 0) tcp_make_room(fd(), owed_);
}

// REQUIRES: may_leave_by_message().
void Stream::leave_by_message(Reason reason) noexcept {
  begin_return(reason);
  channel_->all_consumed();  // looks
  peer_consumed_ = channel_->tx_consumed();
  ControlMessage left;
  left.type = static_cast<std::uint8_t>(ControlType::kLeft);
  left.reason = static_cast<std::uint8_t>(reason);
  left.value = channel_->rx_consumed();
  left.consumed = peer_consumed_;
  if (!channel_->send_control(left)) return break_connection(ECONNRESET, Reason::kQpError);
  take_in_channel();  // it may have left at the same time
  if (state() != State::kResuming) return;
  // Or be leaving as it usually does. Nobody would find its frame any more.
  if (frame_stands_behind()) return break_connection(ECONNRESET, Reason::kBadRequest);
  boundary_ = kNoBoundary;
  wake_all();
  push_replay();
}

// Whether a frame of the peer's is among what is unread in the kernel, at whatever place.
bool Stream::frame_stands_behind() noexcept {
  int unread = 0;
  if (sys::ioctl(fd(), SIOCINQ, &unread) != 0 || unread < static_cast<int>(kTokenBytes)) return false;
  const auto n = static_cast<std::size_t>(unread);
  const std::unique_ptr<std::uint8_t[]> bytes(new (std::nothrow) std::uint8_t[n]);
  if (bytes == nullptr) return true;
  const ssize_t seen = sys::recv(fd(), bytes.get(), n, MSG_PEEK | MSG_DONTWAIT);
  const std::uint8_t* const end = bytes.get() + std::max<ssize_t>(seen, 0);
  return std::search(bytes.get(), const_cast<std::uint8_t*>(end), nonce_.begin(), nonce_.end()) != end;
}

void Stream::on_left(const ControlMessage& m) noexcept {
  if (!channel_->agreement().has(Feature::kLeft) || !token_seen_ || !token_sent_) {
    channel_->fail(Reason::kBadRequest);
    return;
  }
  // Where its program, or ours, has read on meanwhile, bytes would come twice.
  const bool agrees = m.consumed == channel_->rx_consumed() && m.value >= channel_->tx_consumed() &&
                      m.value <= channel_->tx_head();
  const Reason reason = reason_from_wire(m.reason);
  slot_->peer_reason.store(static_cast<std::uint8_t>(reason), std::memory_order_relaxed);
  switch (state()) {
    case State::kOnChannel: {
      if (!agrees) return break_connection(ECONNRESET, Reason::kUntrackedIo);
      const bool ours = !shut_wr() && !kernel_counted_the_same();
      begin_return(ours ? Reason::kUntrackedIo : Reason::kPeerLeft);
      peer_consumed_ = m.value;
      skip_verified();
      wake_all();
      push_replay();
      return;
    }
    case State::kResuming:
      // Both at once. Or it will not find our frame.
      if (!agrees || !resume_seen_ || m.value != peer_consumed_) {
        break_connection(ECONNRESET, Reason::kUntrackedIo);
      }
      return;
    default:
      return;  // it has closed, or is no more
  }
}

// ---- How the bytes are moved

// Bytes stand on TCP where the peer's library writes nothing but a frame: somebody else there has written them.
// They come behind what is in the ring, and the way back begins when that has been read. False: there is no
// such way.
bool Stream::bytes_came_past() noexcept {
  if (!may_leave_by_message()) return false;
  const std::int64_t now = sys::now_ns();
  if (past_since_ns_ == 0) past_since_ns_ = now;
  channel_->progress();
  const bool read_here = channel_->rx_consumed() == channel_->rx_head();
  // A program that goes past its library may never read what it has in the ring.
  if (read_here && (channel_->all_consumed() || now - past_since_ns_ >= kPatienceNs)) {
    leave_by_message(Reason::kUntrackedIo);
  } else {
    past_at_ns_ = now + kLookAgainNs;
  }
  return true;
}

// Too few bytes stand there to tell them from a frame. Whether they are none, as no more have come.
bool Stream::may_be_past() noexcept {
  if (!may_leave_by_message()) return false;
  const std::int64_t now = sys::now_ns();
  if (past_since_ns_ == 0) past_since_ns_ = now;
  if (now - past_since_ns_ >= kWholeFrameNs) return true;
  past_at_ns_ = now + kLookAgainNs;
  return false;
}

// ---- How the program waits

// The agent's, until a call is seen: asleep on the channel, then for a while when something has come.
void Stream::look_for_waits() noexcept {
  if (state() != State::kOnChannel || app_closed_ || peer_closed() || is_awaited()) {
    unseen_ = false;
    if (past_since_ns_ == 0) past_at_ns_ = kForever;
    return;
  }
  channel_->progress();
  const std::uint64_t consumed = channel_->rx_consumed();
  const bool unread = channel_->rx_head() != consumed || fin_at_ != kNoBoundary;
  if (!unread || consumed != looked_at_) look_pause_ns_ = kUnseenNs;
  if (!unread) {
    unread_since_ns_ = 0;
    if (past_since_ns_ == 0) past_at_ns_ = kForever;
  } else if (unread_since_ns_ == 0 || consumed != looked_at_) {
    looked_at_ = consumed;
    unread_since_ns_ = sys::now_ns();
    past_at_ns_ = std::min(past_at_ns_, unread_since_ns_ + look_pause_ns_);
  }
}

// Nobody has taken what has come for so long. A program may be busy with something else; but if it waits, then by
// means that are not seen. Reads files of /proc: no lock is held.
void Stream::ask_who_waits() noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    if (!unseen_ || unread_since_ns_ == 0) return;
    if (const std::int64_t at = unread_since_ns_ + look_pause_ns_; sys::now_ns() < at) {
      past_at_ns_ = std::min(past_at_ns_, at);
      return;
    }
  }
  const bool waits = host_->waits_past(*this);
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  if (!unseen_ || state() != State::kOnChannel || channel_->rx_consumed() != looked_at_) return;
  if (!waits || is_awaited()) {
    unread_since_ns_ = sys::now_ns();
    look_pause_ns_ = std::min(2 * look_pause_ns_, kLongestUnseenNs);
    past_at_ns_ = std::min(past_at_ns_, unread_since_ns_ + look_pause_ns_);
    return;
  }
  suspected_.store(true, std::memory_order_relaxed);
  note_goes_past();
  // What the peer has not read is its to say, by a frame.
  if (may_leave_by_message() && channel_->all_consumed()) {
    leave_by_message(Reason::kUnseenWait);
  } else {
    leave(Reason::kUnseenWait);
  }
}

}  // namespace ringroad
