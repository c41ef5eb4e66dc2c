#include "rsocket-core/stream/stream_stats.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "rsocket-core/base/sys.h"

namespace ringroad {

StreamStats::StreamStats(StreamHost* host, stats::Segment* segment, std::uint64_t id, int fd, Role role,
                         const FourTuple& tuple, const StreamConfig& config) noexcept
    : StreamCore(host, id, fd, role, tuple, config), segment_(segment) {
  (role_ == Role::kConnect ? rx_sample_ : tx_sample_).set(AnswerTimer::first(id));
  if (segment_ != nullptr) {
    slot_ = segment_->acquire();
    if (slot_ == nullptr) segment_->header().unlisted.fetch_add(1, std::memory_order_relaxed);
  }
  if (slot_ == nullptr) {
    unlisted_.reset(new (std::nothrow) Unlisted);
    // Not even that much memory: count into a place that all streams share and nothing reads.
    static Unlisted nobody_reads;
    Unlisted& place = unlisted_ != nullptr ? *unlisted_ : nobody_reads;
    slot_ = &place.slot;
    latencies_ = &place.latencies;
  } else {
    latencies_ = &segment_->latencies(*slot_);
  }
  if (segment_ != nullptr) {
    rule_index_ = segment_->rule_index(config_.rule);
    segment_->note_opened(rule_index_);
  }
}

StreamStats::~StreamStats() {
  if (segment_ == nullptr) return;
  if (segment_->owns(slot_)) {
    segment_->release(slot_);
    return;
  }
  if (unlisted_ != nullptr) segment_->count_closed(unlisted_->slot, unlisted_->latencies);
  segment_->header().unlisted.fetch_sub(1, std::memory_order_relaxed);
}

void StreamStats::publish_identity() noexcept {
  stats::Segment::begin(*slot_);
  slot_->id = id_;
  slot_->role = static_cast<std::uint8_t>(role_);
  slot_->fd = fd();
  slot_->local = tuple_.local;
  slot_->remote = tuple_.remote;
  std::memcpy(slot_->rule, config_.rule, sizeof slot_->rule);
  slot_->rule_index = rule_index_;
  if (channel_ != nullptr) {
    channel_->info(slot_->channel);
    slot_->protocol = channel_->agreement().version;
    slot_->features = channel_->agreement().features;
  } else {
    slot_->channel = ChannelInfo{};
    slot_->protocol = slot_->features = 0;
  }
  stats::Segment::end(*slot_);
}

void StreamStats::publish_state() noexcept {
  slot_->state.store(static_cast<std::uint8_t>(state()), std::memory_order_relaxed);
  slot_->reason.store(static_cast<std::uint8_t>(reason()), std::memory_order_relaxed);
  slot_->descriptors_extra.store(owns_fd_ ? 1 : 0, std::memory_order_relaxed);
}

void StreamStats::count(bool sent, bool channel, std::size_t bytes) noexcept {
  stats::Counters& c = slot_->counts.traffic;
  stats::Counters::add(sent ? c.tx_bytes[channel] : c.rx_bytes[channel], bytes);
}

void StreamStats::count_message(bool sent, bool channel) noexcept {
  stats::Counters& c = slot_->counts.traffic;
  stats::Counters::add(sent ? c.tx_messages[channel] : c.rx_messages[channel], 1);
  if ((sent ? tx_sample_ : rx_sample_).due()) sample(sent, channel);
}

void StreamStats::sample(bool sent, bool channel) noexcept {
  const std::int64_t now = sys::now_ns();
  SampleCountdown& own = sent ? tx_sample_ : rx_sample_;
  SampleCountdown& other = sent ? rx_sample_ : tx_sample_;
  if (const std::int64_t took = sent ? AnswerTimer::kNothing : answers_.read(now); took >= 0) {
    latencies_->reads.add(static_cast<std::uint64_t>(took));
  }
  if (sent == (role_ == Role::kConnect)) {
    answers_.asked(now, own, other);
  } else if (const std::int64_t took = answers_.answered(now, other, own); took >= 0) {
    latencies_->answers[channel].add(static_cast<std::uint64_t>(took));
  }
}

void StreamStats::note_wake_up() noexcept {
  if (answers_.times_wake_up()) answers_.woken(sys::now_ns(), rx_sample_);
}

void StreamStats::count_kernel_io(bool sent, ssize_t result) noexcept {
  if (result <= 0) return;
  stats::Counters& c = slot_->counts.traffic;
  stats::Counters::add(sent ? c.tx_bytes[0] : c.rx_bytes[0], static_cast<std::size_t>(result));
  count_message(sent, false);
  count_size(sent, static_cast<std::size_t>(result));
}

void StreamStats::count_promotion() noexcept {
  slot_->counts.promotions.fetch_add(1, std::memory_order_relaxed);
  if (segment_ == nullptr) return;
  segment_->header().streams_promoted.fetch_add(1, std::memory_order_relaxed);
  segment_->rule(rule_index_).promoted.fetch_add(1, std::memory_order_relaxed);
}

void StreamStats::count_refusal(Reason reason) noexcept {
  if (segment_ == nullptr) return;
  const auto why = static_cast<unsigned>(reason);
  stats::SegmentHeader& header = segment_->header();
  stats::refusals(header, why).fetch_add(1, std::memory_order_relaxed);
  stats::refusals(header, segment_->rule(rule_index_), rule_index_, why)
      .fetch_add(1, std::memory_order_relaxed);
}

bool StreamStats::count_stall() noexcept {
  stats::Counters::add(slot_->counts.stalls, 1);
  if (standing_.mark(StateWord::kStalled)) return false;
  slot_->stalled_since_ns.store(sys::now_ns(), std::memory_order_relaxed);
  return true;
}

void StreamStats::stall_ends() noexcept {
  const std::int64_t since = slot_->stalled_since_ns.load(std::memory_order_relaxed);
  const auto waited = static_cast<std::uint64_t>(std::max<std::int64_t>(sys::now_ns() - since, 0));
  slot_->counts.waits.add(stats::wait_units(waited));
  stats::Counters::add(slot_->counts.waited_ns, waited);
  slot_->stalled_since_ns.store(0, std::memory_order_relaxed);
  standing_.unmark(StateWord::kStalled);
}

}  // namespace ringroad
