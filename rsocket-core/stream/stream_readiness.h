// Waiting for a stream: what poll(2) would say of it (stream_poll.cc), polling and sleeping
// (stream_sleep.cc).
#pragma once

#include <poll.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <optional>

#include "rsocket-core/stream/adaptive_poller.h"
#include "rsocket-core/stream/deferred_selector.h"
#include "rsocket-core/stream/stream_transitions.h"

namespace ringroad {

class StreamReadiness : public StreamTransitions {
 public:
  // Of a program that does not wait: until the switch is given up, twice as long each time, as often as
  // PromotionRetry::kPatienceDoublings (threads may have to wait long for a processor); and if it cannot be
  // given up.
  static constexpr std::int64_t kSwitchPatienceNs = 10'000'000;
  static constexpr std::int64_t kTokenPatienceNs = 100'000'000;

  struct PollPlan {
    short ready = 0;          // poll(2) bits that hold now
    short kernel_events = 0;  // bits that the kernel answers for, on the TCP descriptor
    bool use_kernel = false;  // put {fd, kernel_events} into the set
    bool on_channel = false;  // a channel has something to do with it
    bool frozen = false;      // no room only until a switch is through
    bool ended = false;       // the peer's direction has ended, or will where it is known
    int channel_fd = -1;      // armed; put it into the set, unless sleeps_by_edge()
    std::uint32_t channel_events = 0;  // Channel::wait_events()
    // For a caller that reports changes only: a difference from the last time is one.
    std::uint64_t arrivals = 0;   // bytes that ever came over the channel
    std::uint64_t blocked = 0;    // sends that found no room
    std::uint64_t shutdowns = 0;  // of either end, and resets; of ours also in vain
    std::uint64_t frames = 0;     // bytes of the peer's library that were read from the TCP socket so far
    std::uint64_t channel_generation = 0;  // channels so far: a number may name another one by now
  };
  enum class Arm : std::uint8_t { kNever, kIfIdle, kAlways };
  // A sleep of the program's; kUncancellable: it is no cancellation point.
  enum class Sleep : std::uint8_t { kCancellable, kUncancellable };
  // A receive of one piece, for a thread that polls.
  struct ShortReceive {
    void* to;
    std::size_t n;
    std::size_t taken = 0;
  };

  // What a poll for `events` has to look at. Registering a Waiter comes first, so that nothing
  // that happens after the plan was made goes unnoticed. The channel is armed, so that its wait_fd()
  // tells of the next arrival, never, if nothing is ready now, or in any case.
  PollPlan plan_poll(short events, Arm arm) noexcept;
  // The same where there is nothing to tell but bytes and room, and nothing to do. False: plan_poll() has to
  // tell.
  bool plan_plainly(short events, Arm arm, PollPlan& plan) noexcept;
  void prefetch_more() const noexcept;  // see prefetch()
  // What poll(2) says of the TCP socket under that number, without waiting, as far as it is said of
  // the program's bytes: the carrier may have changed since a plan, and what is there be a frame.
  short ask_kernel(int number, short bits) noexcept;
  // Polls for `events` on the channel, as its rule's `spin` and the time until the deadline allow.
  // False: a plan, and signals::came_since_begin(), tell what came of it. `known_shutdowns`: a
  // plan's, or those that it finds. With `receive` what comes is taken at once, if it can be taken
  // by the short way; its caller need not have looked before. REQUIRES: may_spin().
  bool spin_until_ready(short events, std::int64_t deadline_ns,
                        std::optional<std::uint64_t> known_shutdowns = {},
                        ShortReceive* receive = nullptr) noexcept;
  // The same before a sleep with a mask of signals (signal_masks.h). REQUIRES: it blocks no more.
  bool spin_before_mask(short events, std::int64_t deadline_ns, std::uint64_t known_shutdowns,
                        const sigset_t& mask) noexcept;
  // Whether it is to, which AdaptivePoller::should_poll() wants to be asked once a wait.
  bool may_spin(short events) noexcept;
  // One look of a thread that polls and knows a plan's `arrivals` and `shutdowns`: whether there are
  // more, or something that is to be attended to first, or, where that is awaited, room.
  PollResult look_at_channel(std::uint64_t arrivals, bool room_awaited,
                             std::uint64_t known_shutdowns) noexcept;
  // The program's bytes that have ever come over TCP. `ends`: it is known where they end, and the
  // kernel may be readable because of what stands behind.
  std::uint64_t tcp_arrivals(bool& ends) noexcept;
  // Whether bytes have come, by either carrier, since the last time that this said so: to one
  // asker, of all threads. After a switch it may say so once more.
  bool claim_arrivals() noexcept;
  // Sleeps for `events` on the channel's word, where nothing but the channel and this process' threads has
  // anything to tell of them. As ppoll(2), or kNoWord: plan_poll() is to tell. `ends_by_signal`: a handler
  // with SA_RESTART ends it too. REQUIRES: `waiter` is in waiters().
  static constexpr int kNoWord = -2;
  int sleep_on_word(ThreadWaiter& waiter, short events, std::int64_t deadline_ns, Sleep kind,
                    bool ends_by_signal) noexcept;
  // Whether the channel is no part of a set for ppoll(2): watch_by_edge() has it tell the thread's wake_fd.
  // False: it does not, and the thread has to look again soon.
  static bool sleeps_by_edge(const PollPlan& plan) noexcept {
    return plan.channel_fd >= 0 && (plan.channel_events & EPOLLET) != 0;
  }
  bool watch_by_edge(const PollPlan& plan, int wake_fd) noexcept;
  // After a sleep on this stream alone that its wake_fd ended.
  void after_wake(int wake_fd) noexcept;
  // After a sleep: takes the channel's wake-up in, and tells the other waiters. `taker`: an item of an
  // EpollSet, which sleeps by edges.
  void after_sleep(const Waiter* taker = nullptr) noexcept;
  // The same, by edges, of a channel whose wake-ups each sleeper is told of. False: of this one they are not.
  bool take_in_by_edge() noexcept;
  int channel_fd() noexcept;
  std::uint32_t channel_events() noexcept;
  // In how many EpollSets it is; with this bit it enters none any more, as its last number is being
  // closed.
  static constexpr unsigned kEntersNoMore = 1U << 31;
  std::atomic<unsigned>& in_epoll_sets() noexcept { return in_epoll_sets_; }

  // Where there is no Stream yet: sleeps as recv(2) does, without a time-out, until there is
  // something to be read from `fd`, or `use` is settled, and `waiters` were woken. False: errno.
  // REQUIRES: thread_wake_fd() >= 0.
  static bool sleep_early(int fd, WaitList& waiters, const DeferredSelector& use) noexcept;
  // Whether nothing can be sent because the stream changes its carrier.
  bool tx_is_held() noexcept;
  // For calls that do not wait: while the stream changes its carrier there is no room, and that is
  // no business of the program's. Sleeps until the change is over. One that can be given up is,
  // when kSwitchPatienceNs or more have passed since `asked_ns`, when the call began that may ask
  // more than one stream; one that cannot is left alone kTokenPatienceNs after that time. False if
  // there was no change under way, or there is one still. A return to TCP gets that time once, not
  // once a call.
  bool outlast_switch(std::int64_t asked_ns) noexcept;
  // Whether a send that does not wait would outlast the change that is under way.
  bool room_is_near() const noexcept;
  // Sleeps until the stream is on its channel, or will not be, or the time is over.
  void wait_promoted(std::int64_t timeout_ns) noexcept;

 protected:
  using StreamTransitions::StreamTransitions;
  ~StreamReadiness() = default;

  // False: errno. `restart`: ERESTART, if a handler that asks for that has ended the sleep.
  // `polled`: there is no use in polling before.
  bool sleep_until_ready(short events, std::int64_t deadline_ns, bool restart, Sleep kind,
                         bool polled = false) noexcept;
  // A sleep of the program's in which the thread may be cancelled, and what a call says of one that ended
  // with EINTR. ERESTART: it is to be made anew, from the number on, as the handler may have closed that.
  static int sleep_as_program(pollfd* fds, unsigned long count, std::int64_t deadline_ns) noexcept;
  static int after_handler() noexcept;
  // Sleeps until the kernel has the stream for good and what was unread, or the stream is over.
  void sleep_until_on_kernel(std::int64_t timeout_ns, bool can_be_woken) noexcept;
  void sleep_while_held(std::int64_t deadline_ns) noexcept;
  // Stream::recv_short() by a thread that holds the lock; 0: see there.
  std::size_t take_short(void* to, std::size_t n) noexcept RR_REQUIRES(rx_mutex_);

  std::atomic<bool> agent_on_channel_{false};  // the agent sleeps on the channel too

 private:
  // What the kernel has of the bytes that come again.
  struct Refill {
    std::uint64_t unread = ~std::uint64_t{0};  // bytes, in the kernel
    std::int64_t since_ns = 0;                 // so many
  };
  bool has_come_again(Refill& refill) noexcept;
  short channel_ready(short events) noexcept RR_REQUIRES(rx_mutex_);
  template <typename Interrupted>
  bool spin(short events, std::int64_t deadline_ns, std::optional<std::uint64_t> known_shutdowns,
            ShortReceive* receive, Interrupted interrupted) noexcept;
  bool plan_on_channel(short events, Arm arm, PollPlan& plan) noexcept RR_REQUIRES(rx_mutex_);
  bool arm_word(short events, Channel::WaitWord& on) noexcept;
  bool arm_word_on_channel(short events, Channel::WaitWord& on) noexcept RR_REQUIRES(rx_mutex_);

  // Over TCP, and over one channel.
  struct Arrived {
    std::uint64_t tcp = 0;
    std::uint64_t ring = 0;
    std::uint64_t channel = 0;
    bool operator==(const Arrived&) const = default;
  };
  Arrived claimed_ RR_GUARDED_BY(rx_mutex_);  // see claim_arrivals()
  std::atomic<unsigned> in_epoll_sets_{0};
  // thread_edges::mark_of(), where a thread that has slept on several streams has put the channel last.
  std::atomic<std::uint64_t> in_edges_{0};
  AdaptivePoller poller_;
};

}  // namespace ringroad
