// What poll(2) would say of a stream, and polling its channel.
#include <poll.h>

#include <algorithm>
#include <utility>

#include "rsocket-core/base/signal_masks.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/stream_fastpath.h"

namespace ringroad {
namespace {

constexpr short kReadBits = POLLIN | POLLRDNORM;
constexpr short kWriteBits = POLLOUT | POLLWRNORM;
constexpr short kAlwaysBits = POLLERR | POLLHUP;
// A thread that polls a queue pair for bytes looks for what else there may be each so many looks.
constexpr unsigned kLooksPerLookAround = 8;
// A thread that polls before a sleep with a mask asks for pending signals each so many looks.
constexpr unsigned kLooksPerPending = 16;

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
  // A sender, which has the other lock, may have taken in what came since the look, which arm() finds nothing
  // new in.
  if (hardly_ever(channel.rx_head() != plan.arrivals || channel.control_pending())) return false;
  plan.channel_fd = channel.wait_fd();
  plan.channel_events = channel.wait_events();
  return true;
}

}  // namespace

// What the channel and its peer's end say; enough to decide whether to look closer.
short StreamReadiness::channel_ready(short events) noexcept {
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
// As in stream_fastpath.h, the state says most of what plan_poll() asks one by one.
bool StreamReadiness::plan_on_channel(short events, Arm arm, PollPlan& plan) noexcept {
  if (!standing_.is_only(State::kOnChannel, StateWord::kStalled) || verified_ != 0 || shut_rd_ ||
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

// Only a look for room needs the senders' lock: else one could find none, and count that, between the two
// looks here.
bool StreamReadiness::plan_plainly(short events, Arm arm, PollPlan& plan) noexcept {
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

bool StreamReadiness::arm_word_on_channel(short events, Channel::WaitWord& on) noexcept {
  PollPlan plan;
  if (!plan_on_channel(events, Arm::kNever, plan) || plan.ready != 0) return false;
  on = channel_->wait_word();
  // See plan_arrivals().
  return on && channel_->arm_word() && channel_->rx_head() == plan.arrivals && !channel_->control_pending();
}

// As plan_plainly(), for a sleep on the channel's word. False: plan_poll() has to tell.
bool StreamReadiness::arm_word(short events, Channel::WaitWord& on) noexcept {
  touch();
  if (!standing_.is(State::kOnChannel)) return false;
  if ((events & kWriteBits) == 0) {
    MutexLock rx(rx_mutex_);
    return arm_word_on_channel(events, on);
  }
  MutexLock tx(tx_mutex_);
  MutexLock rx(rx_mutex_);
  if (!arm_word_on_channel(events, on)) return false;
  watch_for_stall();
  return true;
}

void StreamReadiness::prefetch_more() const noexcept {
  const stats::StreamCounts& counts = slot_->counts;
  ringroad::prefetch(reinterpret_cast<std::uintptr_t>(&counts.traffic.rx_messages[1]));
  ringroad::prefetch(reinterpret_cast<std::uintptr_t>(&counts.rx_sizes));
  Channel::Near near;
  for (std::size_t i = 0; i < near.size(); ++i) near[i] = near_[i].load(std::memory_order_relaxed);
  if (near[0] != 0) ShmChannel::prefetch(near);
}

StreamReadiness::PollPlan StreamReadiness::plan_poll(short events, Arm arm) noexcept {
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
      const bool writing_ring = protocol_.sends_to_ring() && channel_ != nullptr;
      // What comes by the ring is the next, or stands behind bytes that are unread in the kernel
      // still.
      const bool ring_follows =
          channel_ != nullptr && from == Source::kTcpUpToBoundary && protocol_.token_seen() &&
          !protocol_.resume_sent();
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
      if (again_.ends) peer_ended = true;
      plan.ended = peer_ended;
      if (peer_ended) {
        ready |= POLLRDHUP;
        if (shut_rd_ || again_.ends || peer_closed() || reading_kernel ||
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
      } else if (!writing_kernel && (shut_wr() || protocol_.dead())) {
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
        plan.channel_events = channel_->wait_events();
      }
    }
    if (!service_first) return plan;
    service();
  }
}

// Nobody promises not to read past a place while the lock is held, and no frame comes before that.
short StreamReadiness::ask_kernel(int number, short bits) noexcept {
  timespec at_once{};
  MutexLock rx(rx_mutex_);
  const Source from = source();
  if (from != Source::kTcp && from != Source::kTcpUpToBoundary) bits &= kWriteBits | kAlwaysBits;
  pollfd now{number, bits, 0};
  return sys::ppoll(&now, 1, &at_once, nullptr) > 0 ? now.revents : 0;
}

std::uint64_t StreamReadiness::tcp_arrivals(bool& ends) noexcept {
  MutexLock rx(rx_mutex_);
  ends = boundary_ != kNoBoundary && !protocol_.resume_seen();
  return tcp_rx_ - frames_rx_ + unread_on_tcp();
}

bool StreamReadiness::claim_arrivals() noexcept {
  MutexLock rx(rx_mutex_);
  Arrived now;
  now.tcp = tcp_rx_ - frames_rx_ + unread_on_tcp();
  now.ring = channel_ != nullptr ? channel_->rx_head() : 0;
  now.channel = channel_generation_;
  return std::exchange(claimed_, now) != now;
}

void StreamReadiness::after_sleep(const Waiter* taker) noexcept {
  {
    MutexLock rx(rx_mutex_);
    if (channel_ == nullptr) return;
    // The wake-up may be somebody else's too, and nobody is armed any more. The others are told before
    // wait_fd() is silent: an epoll_wait() between the two finds one or the other. They look with the lock.
    waiters_.wake_in_place(POLLIN | POLLOUT, taker);
    if (taker == nullptr || channel_->drains_by_edge()) channel_->drain();
    channel_->progress();
    if (channel_->rx_view().size > 0) note_wake_up();
  }
  if (agent_on_channel_.load(std::memory_order_relaxed)) attend();
}

bool StreamReadiness::take_in_by_edge() noexcept {
  MutexLock rx(rx_mutex_);
  if (channel_ == nullptr || channel_->drains_by_edge()) return false;
  channel_->progress();
  if (channel_->rx_view().size > 0) note_wake_up();
  return true;
}

int StreamReadiness::channel_fd() noexcept {
  MutexLock rx(rx_mutex_);
  return channel_ == nullptr ? -1 : channel_->wait_fd();
}

std::uint32_t StreamReadiness::channel_events() noexcept {
  MutexLock rx(rx_mutex_);
  return channel_ == nullptr ? 0 : channel_->wait_events();
}

bool StreamReadiness::may_spin(short events) noexcept {
  return state() == State::kOnChannel && (events & (kReadBits | kWriteBits)) != 0 &&
         config_.spin_ns != 0 && poller_.should_poll();
}

template <typename Interrupted>
[[gnu::always_inline]] inline bool StreamReadiness::spin(short events, std::int64_t deadline_ns,
                                                         std::optional<std::uint64_t> known_shutdowns,
                                                         ShortReceive* receive,
                                                         Interrupted interrupted) noexcept {
  std::int64_t longest_ns = config_.spin_ns;
  if (deadline_ns != kForever) {
    longest_ns = std::clamp<std::int64_t>(deadline_ns - sys::now_ns(), 0, longest_ns);
  }
  unsigned looks = 0;
  return poller_.poll_until(
      [&]() noexcept {
        if (interrupted()) return PollResult::kInterrupted;
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
          // A caller that has not asked before finds these out here.
          moved |= receive->taken > 0 ||
                   (all && (shut_rd_ || standing_.error() != 0));
        }
        const bool awaited = (rx_mutex_.unlock_and_tell() & Mutex::kAwaited) != 0 && was_free;
        return moved ? PollResult::kReady : awaited ? PollResult::kInterrupted : PollResult::kNothing;
      },
      longest_ns);
}

bool StreamReadiness::spin_until_ready(short events, std::int64_t deadline_ns,
                                       std::optional<std::uint64_t> known_shutdowns,
                                       ShortReceive* receive) noexcept {
  return spin(events, deadline_ns, known_shutdowns, receive, signals::came_since_begin);
}

bool StreamReadiness::spin_before_mask(short events, std::int64_t deadline_ns, std::uint64_t known_shutdowns,
                                       const sigset_t& mask) noexcept {
  unsigned looks = 0;
  return spin(events, deadline_ns, known_shutdowns, nullptr, [&]() noexcept {
    return signals::came_since_begin() || (looks++ % kLooksPerPending == 0 && signals::lets_one_in(mask));
  });
}

PollResult StreamReadiness::look_at_channel(std::uint64_t arrivals, bool room_awaited,
                                   std::uint64_t known_shutdowns) noexcept {
  const bool was_free = rx_mutex_.lock_and_tell();
  if (channel_ != nullptr) channel_->progress();
  const bool moved = channel_ == nullptr || state() != State::kOnChannel ||
                     channel_->rx_head() != arrivals || channel_->control_pending() ||
                     channel_->failed() || shutdowns() != known_shutdowns ||
                     (room_awaited && has_room(*channel_));
  const bool awaited = (rx_mutex_.unlock_and_tell() & Mutex::kAwaited) != 0 && was_free;
  return moved ? PollResult::kReady : awaited ? PollResult::kInterrupted : PollResult::kNothing;
}

}  // namespace ringroad
