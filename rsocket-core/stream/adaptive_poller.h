// How a thread polls before it sleeps, and when it does not.
//
// A poll costs processor time, and saves a sleep and a wake-up where the answer comes soon. The rule is in
// the manner of KVM's halt polling: it grows where polling pays, shrinks where it does not, and has a
// ceiling and a start. What grows is not the time of a poll but the credit for polls in vain. A shorter
// poll would end before answers that come late, and the end that sleeps too soon puts its peer to sleep as
// well. And the time that a sleep takes tells nothing: to wake up may take as long as the whole poll.
//
//   credit   0 .. kMostCredit     each wait polls, for as long as the caller allows
//            below 0              each wait adds one and sleeps at once; at 0 the next poll is a probe
//
//   a poll has found something    one more, up to kMostCredit
//   its time is over              one less; where there was none left, -kProbeEvery
//   other threads wanted the processor meanwhile    -kProbeEvery, and a pause
//   it was interrupted            nothing is learned
//
// So a wait polls where more than half of the polls pay. Where they do not, one wait in kProbeEvery is a
// probe, or up to kMostCredit waits sooner: a fixed distance might probe always at one place of what a
// program repeats.
//
// The thread that polls may occupy the processor that the answering thread needs. So it yields: a probe at
// once, any poll each kYieldEveryNs. The kernel counts how often it gave the processor to others. If that
// has changed over a yield, the poll is over: if the answer is there by then, a sleep would have brought it
// sooner. The count is taken right before the yield and right after it, for only what the yield itself has
// let run may end the poll. An interrupt, or a hypervisor that stops the processor for a while, may not.
//
// A thread of others that does not sleep keeps the processor for a time slice, some milliseconds. So after a
// yield that others took nothing is polled for as long as they ran. The pause is twice the last one if that
// happens again before as much time has passed since the last one's end. It is kLongestPauseNs at most.
//
// What this costs: where polling does not pay, one poll in some kProbeEvery waits, after kMostCredit of
// them. Where others always want the processor they get one time slice for each kLongestPauseNs. Answers
// within kYieldEveryNs cost no system call.
//
// Thread rule: any thread at any time. Threads that share a poller may overwrite what the other has learned.
#pragma once

#include <atomic>
#include <cstdint>

#include "rsocket-core/base/hints.h"
#include "rsocket-core/base/signals.h"
#include "rsocket-core/base/sys.h"

namespace ringroad {

// What one look has found. A poll that is interrupted ends without having learned whether polling pays.
enum class PollResult : std::uint8_t { kNothing, kReady, kInterrupted };

// What a poller asks of the host.
struct PollerHost {
  static std::int64_t now_ns() noexcept { return sys::now_ns(); }
  static void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  // Other threads that are ready to run on this processor run.
  static void yield() noexcept;
  // How often the kernel has given the processor to another thread while this one wanted it.
  static long switches() noexcept;
};

class AdaptivePoller {
 public:
  static constexpr int kMostCredit = 16;  // a new poller has half of it
  static constexpr int kProbeEvery = 61;
  static constexpr std::int64_t kYieldEveryNs = 25'000;
  static constexpr std::int64_t kLongestPauseNs = 1'000'000'000;

  // Whether the caller is to poll before it sleeps. To be asked once a wait, for those that sleep at once are
  // counted. A yes stays one until poll_until() has used it.
  template <typename Host = PollerHost>
  bool should_poll(Host&& host = Host()) noexcept {
    const int credit = credit_.load(std::memory_order_relaxed);
    if (credit < 0) {
      credit_.store(credit + 1, std::memory_order_relaxed);
      if (credit + 1 < 0) return false;
    }
    if (hardly_ever(signals::handlers_unseen.load(std::memory_order_relaxed) != 0)) return false;
    const std::int64_t resumes_ns = resumes_ns_.load(std::memory_order_relaxed);
    return resumes_ns == 0 || host.now_ns() >= resumes_ns;
  }

  // Polls until `look`, which returns a PollResult, has found something, for `longest_ns` at most. False:
  // it has not, it was interrupted, or other threads want the processor. REQUIRES: should_poll() has said
  // yes.
  template <typename Look, typename Host = PollerHost>
  bool poll_until(Look look, std::int64_t longest_ns, Host&& host = Host()) noexcept {
    if (longest_ns == 0) return false;
    std::int64_t now = host.now_ns();
    const std::int64_t end = now + longest_ns;
    const bool probes = credit_.load(std::memory_order_relaxed) <= 0;
    std::int64_t next_yield = probes ? now : now + kYieldEveryNs;
    do {
      const PollResult found = look();
      if (found == PollResult::kReady) paid();
      if (found != PollResult::kNothing) return found == PollResult::kReady;
      if (now < next_yield) {
        host.relax();
        now = host.now_ns();
        continue;
      }
      const long before = host.switches();
      host.yield();
      const bool others_ran = host.switches() != before;
      const std::int64_t began = now;
      now = host.now_ns();
      if (others_ran) {
        others_want_it(began, now);
        return look() == PollResult::kReady;
      }
      next_yield = now + kYieldEveryNs;
    } while (now < end);
    in_vain(now);
    return false;
  }

 private:
  void paid() noexcept {
    const int credit = credit_.load(std::memory_order_relaxed);
    if (credit < kMostCredit) credit_.store(credit + 1, std::memory_order_relaxed);
  }
  void in_vain(std::int64_t now_ns) noexcept;
  // They ran from `from_ns` to `now_ns`.
  void others_want_it(std::int64_t from_ns, std::int64_t now_ns) noexcept;

  std::atomic<int> credit_{kMostCredit / 2};
  std::atomic<std::int64_t> pause_ns_{0};    // the last one; 0: there was none
  std::atomic<std::int64_t> resumes_ns_{0};  // its end
};

}  // namespace ringroad
