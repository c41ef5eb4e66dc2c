// What reaches the kernel past the library: io_uring, system calls that are no calls of libc's, a plug-in that
// has libc to itself. Two things can be seen of it.
//
//   waiting     A stream is promoted when the program has waited for it by a call that came through here, or
//               nothing says that it waits by another. On a channel it is watched: if bytes come, nobody takes
//               them and the program waits by another call, it leaves.
//   moving      The kernel's counters differ from the library's: no promotion. On a channel, bytes that the
//               peer's library has not written come over TCP: it leaves.
//
// Somebody may be reading the TCP socket then, so no frame may be written there. The end that leaves says so by
// one message on the channel, LEFT, and is on TCP at once; the other follows when it finds that:
//
//   LEFT{value = what my program has read, consumed = what yours has}    I write the rest of mine to TCP now
//
// Over shared memory each end knows what the other's program has consumed. Over RDMA the other end answers with its
// own LEFT, and no end reads or writes TCP before it has the other's.
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
// Until the peer has left for such bytes, if it ever does.
constexpr std::int64_t kEndWaitsNs = 2'000'000'000;
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
  if ((!nonblocking() && !touched()) || !host_->waits_past(*this, false)) return Reason::kNone;
  if (is_awaited()) return Reason::kNone;  // by now: that is the call that was found
  note_goes_past();
  return Reason::kUnseenWait;
}

// ---- Leaving

bool Stream::may_leave_by_message() const noexcept {
  return state() == State::kOnChannel && !channel_->failed() && knows_left() && !peer_closed() &&
         verified_ == 0 && tcp_rx_ == boundary_ && !frames_wait();
}

// On a channel: bytes on TCP that the library has not written. The program's end is not the kernel's there.
bool Stream::wrote_past() const noexcept {
  std::uint64_t written = 0;
  std::uint64_t read = 0;
  return tcp_counters(fd(), role_ == StreamRole::kConnect, written, read) &&
         static_cast<std::int64_t>(written - tcp_tx_) > 0;
}

// The peer is about to find bytes on TCP and to leave for those, and the end stands behind them. Unless its program has
// taken them past its library, too: then it finds none.
bool Stream::end_waits_for_past() noexcept {
  if (!knows_left() || !wrote_past()) return false;
  const std::int64_t now = sys::now_ns();
  if (past_since_ns_ == 0) past_since_ns_ = now;
  const std::int64_t until = past_since_ns_ + kEndWaitsNs;
  if (now >= until) return false;
  past_at_ns_ = std::min(past_at_ns_, until);
  return true;
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
  watched_ = false;
  reset_if_killed(true);
  if (owed_ > 0) tcp_make_room(fd(), owed_);
}

// REQUIRES: may_leave_by_message().
void Stream::leave_by_message(Reason reason) noexcept {
  begin_return(reason);
  channel_->all_consumed();  // looks
  peer_consumed_ = channel_->tx_consumed();
  resume_seen_ = leaves_at_once();
  say_left(reason);
  if (state() != State::kResuming) return;
  take_in_channel();  // it may have left at the same time
  if (state() != State::kResuming) return;
  if (leaves_at_once()) {
    // Or be leaving as it usually does. Nobody would find its frame any more.
    if (frame_stands_behind()) return break_connection(ECONNRESET, Reason::kBadRequest);
    boundary_ = kNoBoundary;
  }
  wake_all();
  push_replay();
}

void Stream::say_left(Reason reason) noexcept {
  said_left_ = true;
  ControlMessage left;
  left.type = static_cast<std::uint8_t>(ControlType::kLeft);
  left.reason = static_cast<std::uint8_t>(reason);
  left.value = channel_->rx_consumed();
  left.consumed = peer_consumed_;  // over RDMA the channel's own: see wire.h
  if (!channel_->send_control(left)) break_connection(ECONNRESET, Reason::kQpError);
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
  if (!knows_left() || !token_seen_ || !token_sent_) {
    channel_->fail(Reason::kBadRequest);
    return;
  }
  // What our program has read on meanwhile comes twice; where both ends say LEFT, nothing does.
  const std::uint64_t twice = leaves_at_once() ? channel_->rx_consumed() - m.consumed : 0;
  const bool agrees = twice <= channel_->ring_bytes() && m.value >= channel_->tx_consumed() &&
                      m.value <= channel_->tx_head();
  const Reason reason = reason_from_wire(m.reason);
  slot_->peer_reason.store(static_cast<std::uint8_t>(reason), std::memory_order_relaxed);
  switch (state()) {
    case State::kOnChannel: {
      const bool ours = (!shut_wr() || pending_shut_wr_) && !kernel_counted_the_same();
      // Over RDMA our program's bytes on TCP may have overtaken those of the ring.
      const bool in_order = leaves_at_once() || !ours || m.value == channel_->tx_head();
      if (!agrees || !in_order) return break_connection(ECONNRESET, Reason::kUntrackedIo);
      begin_return(ours ? Reason::kUntrackedIo : Reason::kPeerLeft);
      peer_consumed_ = m.value;
      if (!leaves_at_once()) say_left(leave_reason_);
      if (state() != State::kResuming) return;
      drop_twice(static_cast<std::size_t>(twice));
      skip_verified();
      wake_all();
      push_replay();
      return;
    }
    case State::kResuming:
      if (agrees && awaits_left() && !resume_seen_) {
        peer_consumed_ = m.value;
        resume_seen_ = true;
        skip_verified();
        wake_all();
        return push_replay();
      }
      // Both at once, and bytes may have been read already of what it writes. Or it will not find our frame.
      if (!agrees || twice > 0 || !resume_seen_ || m.value != peer_consumed_) {
        break_connection(ECONNRESET, Reason::kUntrackedIo);
      }
      return;
    default:
      return;  // it has closed, or is no more
  }
}

// As a copy of which the program has read all: it is dropped where it comes.
void Stream::drop_twice(std::size_t n) noexcept {
  again_ = Passage(nullptr, n);
  again_.filled = again_.sent = n;
  again_dropped_ = again_of_ring_ = 0;
  again_ends_ = false;
}

// ---- How the bytes are moved

// Bytes stand on TCP where the peer's library writes nothing but a frame: somebody else there has written them.
// They come behind what is in the ring, and the way back begins when that has been read. False: there is no
// such way.
bool Stream::bytes_came_past() noexcept {
  take_in_channel();  // they may be the peer's, which has left
  if (state() != State::kOnChannel) return true;
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

// The agent's: asleep on the channel, then for a while when something has come. Where a call was seen, it rests
// while the program takes what comes.
void Stream::look_for_waits() noexcept {
  if (state() != State::kOnChannel || app_closed_ || peer_closed()) {
    watched_ = false;
    if (past_since_ns_ == 0) past_at_ns_ = kForever;
    return;
  }
  const std::int64_t now = sys::now_ns();
  if (now < rests_until_ns_) {
    past_at_ns_ = std::min(past_at_ns_, rests_until_ns_);
    return;
  }
  rests_until_ns_ = 0;
  channel_->progress();
  const std::uint64_t consumed = channel_->rx_consumed();
  const bool unread = channel_->rx_head() != consumed || fin_at_ != kNoBoundary;
  const bool takes = consumed != std::exchange(looked_at_, consumed);
  if (!unread || takes) look_pause_ns_ = kUnseenNs;
  if (takes && is_awaited()) {
    unread_since_ns_ = 0;
    rests_until_ns_ = now + kSeenPauseNs;
    past_at_ns_ = std::min(past_at_ns_, rests_until_ns_);
  } else if (!unread) {
    unread_since_ns_ = 0;
    if (past_since_ns_ == 0) past_at_ns_ = kForever;
  } else {
    if (unread_since_ns_ == 0 || takes) unread_since_ns_ = now;
    past_at_ns_ = std::min(past_at_ns_, unread_since_ns_ + look_pause_ns_);
  }
}

// Nobody has taken what has come for so long. A program may be busy with something else; but if it waits, then by
// means that are not seen. Reads files of /proc: no lock is held.
void Stream::ask_who_waits() noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    if (!watched_ || unread_since_ns_ == 0) return;
    if (const std::int64_t at = unread_since_ns_ + look_pause_ns_; sys::now_ns() < at) {
      past_at_ns_ = std::min(past_at_ns_, at);
      return;
    }
  }
  const bool awaited = is_awaited();
  const bool waits = host_->waits_past(*this, awaited);
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  if (!watched_ || app_closed_ || state() != State::kOnChannel || channel_->rx_consumed() != looked_at_) return;
  // A call may have begun meanwhile. And a thread in a receive would take a frame for the program's bytes.
  // Where the peer cannot drop what its program reads meanwhile, that has read all.
  const bool leaves_quietly =
      may_leave_by_message() && (channel_->agreement().has(Feature::kLeftAnswered) || channel_->all_consumed());
  if (!waits || is_awaited() != awaited || (awaited && !leaves_quietly)) {
    unread_since_ns_ = sys::now_ns();
    look_pause_ns_ = std::min(2 * look_pause_ns_, kLongestUnseenNs);
    past_at_ns_ = std::min(past_at_ns_, unread_since_ns_ + look_pause_ns_);
    return;
  }
  suspected_.store(true, std::memory_order_relaxed);
  note_goes_past();
  if (awaited) pinned_ = true;  // it uses both ways: the next call that is seen proves nothing
  // What the peer has not read is its to say, by a frame.
  if (leaves_quietly) {
    leave_by_message(Reason::kUnseenWait);
  } else {
    leave(Reason::kUnseenWait);
  }
}

}  // namespace ringroad
