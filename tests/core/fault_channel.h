// A channel that goes wrong on order, for tests of what is built on channels. It wraps another
// channel and numbers every step that is taken on it (from 1, all threads together); the script says
// what happens at which step. With an empty script it changes nothing but counts: run a scenario
// once, read steps(), and run it again with a fault at each of them.
//
// Thread rule: channel.h's; the script is fixed at construction. Throws std::bad_alloc from the
// constructor only. Not used in the preloaded library.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "rsocket-core/base/mutex.h"
#include "rsocket-core/channel/channel.h"

namespace ringroad {

enum class FaultKind : std::uint8_t {
  kFail,              // the channel fails for `reason` just before the step is done
  kDropControl,       // the first control message sent at or after the step is lost
  kDuplicateControl,  // the first control message sent at or after the step is sent twice
  kDelay,             // the next `amount` calls of progress() take nothing in
  kLimitCredit,       // from the step on, committed bytes wait, and are posted together by every
                      // `amount`-th progress() or flush() (0: never)
};

struct Fault {
  FaultKind kind = FaultKind::kFail;
  std::uint64_t at = 0;
  std::uint32_t amount = 0;
  Reason reason = Reason::kQpError;
};

class FaultChannel final : public Channel {
 public:
  // The steps that are numbered: commit(), send_control(), progress(), arm(), take_control() and
  // consume().
  FaultChannel(std::unique_ptr<Channel> inner, std::vector<Fault> script);

  std::uint64_t steps() const noexcept { return steps_.load(std::memory_order_relaxed); }
  // How many faults of the script have happened.
  std::uint64_t faults() const noexcept { return faults_.load(std::memory_order_relaxed); }

  View tx_view() noexcept override RR_EXCLUDES(mutex_);
  void commit(std::size_t n) noexcept override RR_EXCLUDES(mutex_);
  bool send_control(const ControlMessage& message) noexcept override RR_EXCLUDES(mutex_);
  void flush() noexcept override RR_EXCLUDES(mutex_);
  View tx_replay(std::uint64_t offset) noexcept override RR_EXCLUDES(mutex_);
  View rx_view() noexcept override { return inner_->rx_view(); }
  void consume(std::size_t n) noexcept override RR_EXCLUDES(mutex_);

  std::uint64_t tx_head() const noexcept override {
    return tx_head_.load(std::memory_order_acquire);
  }
  std::uint64_t tx_posted() const noexcept override { return inner_->tx_posted(); }
  std::uint64_t tx_consumed() const noexcept override { return inner_->tx_consumed(); }
  std::uint64_t rx_head() const noexcept override { return inner_->rx_head(); }
  std::uint64_t rx_consumed() const noexcept override { return inner_->rx_consumed(); }

  void progress() noexcept override RR_EXCLUDES(mutex_);
  bool control_pending() const noexcept override { return inner_->control_pending(); }
  bool take_control(ControlMessage& out) noexcept override RR_EXCLUDES(mutex_);

  int wait_fd() const noexcept override { return inner_->wait_fd(); }
  std::uint32_t wait_events() const noexcept override { return inner_->wait_events(); }
  bool arm() noexcept override RR_EXCLUDES(mutex_);
  void drain() noexcept override { inner_->drain(); }

  bool delivered() noexcept override;
  bool failed() const noexcept override { return inner_->failed(); }
  Reason failure() const noexcept override { return inner_->failure(); }
  void fail(Reason reason) noexcept override { inner_->fail(reason); }
  void info(ChannelInfo& out) const noexcept override { inner_->info(out); }

 private:
  void begin_step() noexcept RR_EXCLUDES(mutex_);
  bool take_fault(FaultKind kind) noexcept RR_REQUIRES(mutex_);
  void turn() noexcept RR_REQUIRES(mutex_);
  std::uint64_t held() const noexcept { return tx_head() - inner_->tx_head(); }

  const std::unique_ptr<Channel> inner_;
  std::atomic<std::uint64_t> steps_{0};
  std::atomic<std::uint64_t> faults_{0};
  std::atomic<std::uint64_t> tx_head_{0};  // inner's, and what is held back

  Mutex mutex_;  // also makes inner's TX calls one at a time: progress() may post
  std::vector<Fault> script_ RR_GUARDED_BY(mutex_);  // what has not happened yet
  std::uint32_t delay_ RR_GUARDED_BY(mutex_) = 0;
  bool limited_ RR_GUARDED_BY(mutex_) = false;
  std::uint32_t turns_per_post_ RR_GUARDED_BY(mutex_) = 0;
  std::uint32_t turns_ RR_GUARDED_BY(mutex_) = 0;
};

}  // namespace ringroad
