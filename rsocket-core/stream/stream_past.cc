// What reaches the kernel past the library: io_uring, system calls that are no calls of libc's, a plug-in
// that has libc to itself. Two things can be seen of it.
//
//   waiting     A stream is promoted when the program has waited for it by a call that came through here, or
//               nothing says that it waits by another. On a channel it is watched: if bytes come, nobody
//               takes them and the program waits by another call, it leaves.
//   moving      The kernel's counters differ from the library's: no promotion. On a channel, bytes that the
//               peer's library has not written come over TCP: it leaves.
//
// Somebody may be reading the TCP socket then, so no frame may be written there. The end that leaves says so
// by one message on the channel, LEFT, and is on TCP at once; the other follows when it finds that:
//
//   LEFT{value = what my program has read, consumed = what yours has}    I write the rest of mine to TCP now
//
// Over shared memory each end knows what the other's program has consumed. Over RDMA the other end answers
// with its own LEFT, and no end reads or writes TCP before it has the other's.
#include <linux/sockios.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/net/tcp_counters.h"
#include "rsocket-core/stream/stream_transitions.h"

namespace ringroad {
namespace {

// Until what the two programs have not read of the rings is looked at again, and until nobody reads it any
// more.
constexpr std::int64_t kLookAgainNs = 2'000'000;
constexpr std::int64_t kPatienceNs = 200'000'000;
// Until the peer has left for such bytes, if it ever does.
constexpr std::int64_t kEndWaitsNs = 2'000'000'000;
// Until bytes that begin as a frame does are none.
constexpr std::int64_t kWholeFrameNs = 50'000'000;

}  // namespace

// kNone, or why it is not promoted now. May read files of /proc: no lock is held.
Reason StreamTransitions::why_unseen() noexcept {
  if (!host_->sees_waits() || is_awaited()) return Reason::kNone;
  if (past_.suspected || goes_past_.load(std::memory_order_relaxed)) return Reason::kUnseenWait;
  // Of one that has not been used there is nothing to be seen yet.
  if ((!nonblocking() && !touched()) || !waits_past(false)) return Reason::kNone;
  if (is_awaited()) return Reason::kNone;  // by now: that is the call that was found
  note_goes_past();
  return Reason::kUnseenWait;
}

// ---- Leaving

bool StreamTransitions::may_leave_by_message() const noexcept {
  return state() == State::kOnChannel && !channel_->failed() && knows_left() && !peer_closed() &&
         verified_ == 0 && tcp_rx_ == boundary_ && !frames_wait();
}

// On a channel: bytes on TCP that the library has not written. The program's end is not the kernel's there.
bool StreamTransitions::wrote_past() const noexcept {
  std::uint64_t written = 0;
  std::uint64_t read = 0;
  return tcp_counters(fd(), role_ == Role::kConnect, written, read) &&
         static_cast<std::int64_t>(written - tcp_tx_) > 0;
}

// The peer is about to find bytes on TCP and to leave for those, and the end stands behind them. Unless its
// program has taken them past its library, too: then it finds none.
bool StreamTransitions::end_waits_for_past() noexcept {
  if (!knows_left() || !wrote_past()) return false;
  const std::int64_t now = sys::now_ns();
  if (past_.since_ns == 0) past_.since_ns = now;
  const std::int64_t until = past_.since_ns + kEndWaitsNs;
  if (now >= until) return false;
  past_.at_ns = std::min(past_.at_ns, until);
  return true;
}

// What both ends of such a return do. `peer_consumed_` says from where on our ring goes to TCP.
void StreamTransitions::begin_return(Reason reason, SwitchEvent event) noexcept {
  leave_reason_ = reason;
  step(StreamEvent::kLeave, reason);
  protocol_.apply(event);
  // What is in the ring unread comes again over TCP, and so does the end.
  owed_ = channel_->rx_head() - channel_->rx_consumed();
  gave_back_ = came_again_ = false;
  left_at_ns_.store(sys::now_ns(), std::memory_order_relaxed);
  left_fin_at_ = std::exchange(fin_at_, kNoBoundary);
  deadline_ns_ = linger_ends_ns();
  past_.at_ns = kForever;
  past_.since_ns = 0;
  past_.watched = false;
  reset_if_killed(true);
  if (owed_ > 0) tcp_make_room(fd(), owed_);
}

// REQUIRES: may_leave_by_message().
void StreamTransitions::leave_by_message(Reason reason) noexcept {
  begin_return(reason, leaves_at_once() ? SwitchEvent::kSayLeftAtOnce : SwitchEvent::kSayLeft);
  channel_->all_consumed();  // looks
  peer_consumed_ = channel_->tx_consumed();
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

void StreamTransitions::say_left(Reason reason) noexcept {
  ControlMessage left;
  left.type = static_cast<std::uint8_t>(ControlType::kLeft);
  left.reason = static_cast<std::uint8_t>(reason);
  left.value = channel_->rx_consumed();
  left.consumed = peer_consumed_;  // over RDMA the channel's own: see wire.h
  if (!channel_->send_control(left)) break_connection(ECONNRESET, Reason::kQpError);
}

// Whether a frame of the peer's is among what is unread in the kernel, at whatever place.
bool StreamTransitions::frame_stands_behind() noexcept {
  int unread = 0;
  if (sys::ioctl(fd(), SIOCINQ, &unread) != 0 || unread < static_cast<int>(kTokenBytes)) return false;
  const auto n = static_cast<std::size_t>(unread);
  const std::unique_ptr<std::uint8_t[]> bytes(new (std::nothrow) std::uint8_t[n]);
  if (bytes == nullptr) return true;
  const ssize_t seen = sys::recv(fd(), bytes.get(), n, MSG_PEEK | MSG_DONTWAIT);
  const std::uint8_t* const end = bytes.get() + std::max<ssize_t>(seen, 0);
  return std::search(bytes.get(), const_cast<std::uint8_t*>(end), nonce_.begin(), nonce_.end()) != end;
}

void StreamTransitions::on_left(const ControlMessage& m) noexcept {
  if (!knows_left() || !protocol_.token_seen() || !protocol_.token_sent()) {
    channel_->fail(Reason::kBadRequest);
    return;
  }
  // What our program has read on meanwhile comes twice; where both ends say LEFT, nothing does.
  const std::uint64_t twice = leaves_at_once() ? channel_->rx_consumed() - m.consumed : 0;
  const bool agrees = twice <= channel_->ring_bytes() && m.value >= channel_->tx_consumed() &&
                      m.value <= channel_->tx_head();
  const Reason reason = reason_from_wire(m.reason);
  set_peer_reason(reason);
  switch (state()) {
    case State::kOnChannel: {
      const bool ours = (!shut_wr() || pending_shut_wr_) && !kernel_counted_the_same();
      // Over RDMA our program's bytes on TCP may have overtaken those of the ring.
      const bool in_order = leaves_at_once() || !ours || m.value == channel_->tx_head();
      if (!agrees || !in_order) return break_connection(ECONNRESET, Reason::kUntrackedIo);
      begin_return(ours ? Reason::kUntrackedIo : Reason::kPeerLeft,
                   leaves_at_once() ? SwitchEvent::kLeftHeardAtOnce : SwitchEvent::kLeftHeard);
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
      if (agrees && awaits_left() && !protocol_.resume_seen()) {
        peer_consumed_ = m.value;
        protocol_.apply(SwitchEvent::kLeftHeard);
        skip_verified();
        wake_all();
        return push_replay();
      }
      // Both at once, and bytes may have been read already of what it writes. Or it will not find our frame.
      if (!agrees || twice > 0 || !protocol_.resume_seen() || m.value != peer_consumed_) {
        break_connection(ECONNRESET, Reason::kUntrackedIo);
      }
      return;
    default:
      return;  // it has closed, or is no more
  }
}

// As a copy of which the program has read all: it is dropped where it comes.
void StreamTransitions::drop_twice(std::size_t n) noexcept {
  again_.copy = ReturnBuffer(nullptr, n);
  again_.copy.filled = again_.copy.sent = n;
  again_.dropped = again_.of_ring = 0;
  again_.ends = false;
}

// ---- How the bytes are moved

// Bytes stand on TCP where the peer's library writes nothing but a frame: somebody else there has written
// them. They come behind what is in the ring, and the way back begins when that has been read. False: there
// is no such way.
bool StreamTransitions::bytes_came_past() noexcept {
  take_in_channel();  // they may be the peer's, which has left
  if (state() != State::kOnChannel) return true;
  if (!may_leave_by_message()) return false;
  const std::int64_t now = sys::now_ns();
  if (past_.since_ns == 0) past_.since_ns = now;
  channel_->progress();
  const bool read_here = channel_->rx_consumed() == channel_->rx_head();
  // A program that goes past its library may never read what it has in the ring.
  if (read_here && (channel_->all_consumed() || now - past_.since_ns >= kPatienceNs)) {
    leave_by_message(Reason::kUntrackedIo);
  } else {
    past_.at_ns = now + kLookAgainNs;
  }
  return true;
}

// Too few bytes stand there to tell them from a frame. Whether they are none, as no more have come.
bool StreamTransitions::may_be_past() noexcept {
  if (!may_leave_by_message()) return false;
  const std::int64_t now = sys::now_ns();
  if (past_.since_ns == 0) past_.since_ns = now;
  if (now - past_.since_ns >= kWholeFrameNs) return true;
  past_.at_ns = now + kLookAgainNs;
  return false;
}

// ---- How the program waits

// The agent's: asleep on the channel, then for a while when something has come. Where a call was seen, it
// rests while the program takes what comes.
void StreamTransitions::look_for_waits() noexcept {
  if (state() != State::kOnChannel || app_closed_ || peer_closed()) {
    past_.watched = false;
    if (past_.since_ns == 0) past_.at_ns = kForever;
    return;
  }
  const std::int64_t now = sys::now_ns();
  if (now < past_.rests_until_ns) {
    past_.at_ns = std::min(past_.at_ns, past_.rests_until_ns);
    return;
  }
  past_.rests_until_ns = 0;
  channel_->progress();
  const std::uint64_t consumed = channel_->rx_consumed();
  const bool unread = channel_->rx_head() != consumed || fin_at_ != kNoBoundary;
  const bool takes = consumed != std::exchange(past_.looked_at, consumed);
  if (!unread || takes) past_.look_pause_ns = kUnseenNs;
  if (takes && is_awaited()) {
    past_.unread_since_ns = 0;
    past_.rests_until_ns = now + kSeenPauseNs;
    past_.at_ns = std::min(past_.at_ns, past_.rests_until_ns);
  } else if (!unread) {
    past_.unread_since_ns = 0;
    if (past_.since_ns == 0) past_.at_ns = kForever;
  } else {
    if (past_.unread_since_ns == 0 || takes) past_.unread_since_ns = now;
    past_.at_ns = std::min(past_.at_ns, past_.unread_since_ns + past_.look_pause_ns);
  }
}

// Nobody has taken what has come for so long. A program may be busy with something else; but if it waits,
// then by means that are not seen. Reads files of /proc: no lock is held.
void StreamTransitions::ask_who_waits() noexcept {
  {
    MutexLock tx(tx_mutex_);
    MutexLock rx(rx_mutex_);
    if (!past_.watched || past_.unread_since_ns == 0) return;
    if (const std::int64_t at = past_.unread_since_ns + past_.look_pause_ns; sys::now_ns() < at) {
      past_.at_ns = std::min(past_.at_ns, at);
      return;
    }
  }
  const bool awaited = is_awaited();
  const bool waits = waits_past(awaited);
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  if (!past_.watched || app_closed_ || state() != State::kOnChannel ||
      channel_->rx_consumed() != past_.looked_at) {
    return;
  }
  // A call may have begun meanwhile. And a thread in a receive would take a frame for the program's bytes.
  // Where the peer cannot drop what its program reads meanwhile, that has read all.
  const bool leaves_quietly = may_leave_by_message() &&
                              (channel_->agreement().has(Feature::kLeftAnswered) || channel_->all_consumed());
  if (!waits || is_awaited() != awaited || (awaited && !leaves_quietly)) {
    past_.unread_since_ns = sys::now_ns();
    past_.look_pause_ns = std::min(2 * past_.look_pause_ns, kLongestUnseenNs);
    past_.at_ns = std::min(past_.at_ns, past_.unread_since_ns + past_.look_pause_ns);
    return;
  }
  past_.suspected.store(true, std::memory_order_relaxed);
  note_goes_past();
  if (awaited) retry_.stop();  // it uses both ways: the next call that is seen proves nothing
  // What the peer has not read is its to say, by a frame.
  if (leaves_quietly) {
    leave_by_message(Reason::kUnseenWait);
  } else {
    demote(Reason::kUnseenWait);
  }
}

}  // namespace ringroad
