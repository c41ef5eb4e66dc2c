#include "tests/core/fault_channel.h"

#include <algorithm>
#include <utility>

namespace ringroad {

FaultChannel::FaultChannel(std::unique_ptr<Channel> inner, std::vector<Fault> script)
    : Channel(inner->ring_bytes()), inner_(std::move(inner)), script_(std::move(script)) {
  tx_head_.store(inner_->tx_head(), std::memory_order_release);
  set_switch_proof(inner_->switch_proof());
  set_agreement(inner_->agreement());
}

// Faults that strike by themselves. Those of control messages wait for one.
void FaultChannel::begin_step() noexcept {
  const std::uint64_t step = steps_.fetch_add(1, std::memory_order_relaxed) + 1;
  Reason reason = Reason::kNone;
  {
    MutexLock lock(mutex_);
    std::erase_if(script_, [&](const Fault& fault) RR_NO_THREAD_SAFETY_ANALYSIS {
      if (fault.at > step || fault.kind == FaultKind::kDropControl ||
          fault.kind == FaultKind::kDuplicateControl) {
        return false;
      }
      faults_.fetch_add(1, std::memory_order_relaxed);
      if (fault.kind == FaultKind::kFail) {
        reason = fault.reason;
      } else if (fault.kind == FaultKind::kDelay) {
        delay_ = fault.amount;
      } else {
        limited_ = true;
        turns_per_post_ = fault.amount;
      }
      return true;
    });
  }
  if (reason != Reason::kNone) inner_->fail(reason);
}

bool FaultChannel::take_fault(FaultKind kind) noexcept {
  const std::uint64_t step = steps();
  const auto fault = std::find_if(script_.begin(), script_.end(), [&](const Fault& candidate) {
    return candidate.kind == kind && candidate.at <= step;
  });
  if (fault == script_.end()) return false;
  script_.erase(fault);
  faults_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void FaultChannel::turn() noexcept {
  if (held() == 0 || turns_per_post_ == 0) return;
  if (++turns_ % turns_per_post_ == 0) inner_->commit(held());
}

// ---- TX

Channel::View FaultChannel::tx_view() noexcept {
  MutexLock lock(mutex_);
  const View view = inner_->tx_view();
  return {view.data + held(), view.size - held()};
}

void FaultChannel::commit(std::size_t n) noexcept {
  begin_step();
  MutexLock lock(mutex_);
  tx_head_.store(tx_head() + n, std::memory_order_release);
  if (!limited_) inner_->commit(held());
}

bool FaultChannel::send_control(const ControlMessage& message) noexcept {
  begin_step();
  MutexLock lock(mutex_);
  if (take_fault(FaultKind::kDropControl)) return !inner_->failed();
  if (take_fault(FaultKind::kDuplicateControl) && !inner_->send_control(message)) return false;
  return inner_->send_control(message);
}

void FaultChannel::flush() noexcept {
  MutexLock lock(mutex_);
  turn();
  inner_->flush();
}

Channel::View FaultChannel::tx_replay(std::uint64_t offset) noexcept {
  MutexLock lock(mutex_);
  // The ring is mapped twice in a row, so what is held stands right behind inner's bytes.
  const std::uint64_t end = inner_->tx_head();
  if (offset <= end) return {inner_->tx_replay(offset).data, tx_head() - offset};
  return {inner_->tx_replay(end).data + (offset - end), tx_head() - offset};
}

// ---- RX

void FaultChannel::consume(std::size_t n) noexcept {
  begin_step();
  inner_->consume(n);
}

// ---- ANY

void FaultChannel::progress() noexcept {
  begin_step();
  {
    MutexLock lock(mutex_);
    turn();
    if (delay_ > 0) {
      --delay_;
      return;
    }
  }
  inner_->progress();
}

bool FaultChannel::take_control(ControlMessage& out) noexcept {
  begin_step();
  return inner_->take_control(out);
}

bool FaultChannel::arm() noexcept {
  begin_step();
  {
    // Nobody else would wake the sleeper for what progress() alone can bring.
    MutexLock lock(mutex_);
    if (delay_ > 0 || (held() != 0 && turns_per_post_ != 0)) return false;
  }
  return inner_->arm();
}

bool FaultChannel::delivered() noexcept { return held() == 0 && inner_->delivered(); }

}  // namespace ringroad
