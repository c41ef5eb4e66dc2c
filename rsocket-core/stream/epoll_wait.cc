// epoll_wait(2): looks at the streams, then asks the kernel, and sleeps there.
#include <algorithm>
#include <cerrno>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "rsocket-core/base/signal_masks.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/stream/epoll_evaluate.h"
#include "rsocket-core/stream/epoll_set.h"

namespace ringroad {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
// With more streams than that the next look finds something anyway.
constexpr std::size_t kMostPolled = 64;
// Waits in a row that streams alone may fill.
constexpr std::size_t kMostUnasked = 16;
// Each so many looks at them the kernel is asked what else there is, for the first time after half
// of them.
constexpr unsigned kLooksPerQuestion = 16;

}  // namespace

// Neither side can keep the other from a program that takes one event: turn about where both have some, and
// else once a round of the streams that stand in the queue, or sooner, as something new would have to wait
// for in the kernel, too.
bool EpollSet::kernel_is_next() const noexcept {
  const std::size_t most =
      kernel_had_some_.load(std::memory_order_relaxed) ? 1 : std::min(queue_.size(), kMostUnasked);
  return unasked_.load(std::memory_order_relaxed) >= std::max<std::size_t>(most, 1);
}

// ---- Polling

bool EpollSet::may_poll(const sigset_t* mask) noexcept {
  return longest_spin_ns_ != 0 && !queue_.empty() && queue_.size() <= kMostPolled &&
         poller_.should_poll() && (mask == nullptr || signals::blocks_no_more(*mask));
}

// Interrupted where another thread wants to look: a thread that polls hardly lets go of the lock.
PollResult EpollSet::look_for_moves() noexcept {
  const bool was_free = mutex_.lock_and_tell();
  const PollResult found = find_move();
  const bool awaited = (mutex_.unlock_and_tell() & Mutex::kAwaited) != 0 && was_free;
  return found == PollResult::kNothing && awaited ? PollResult::kInterrupted : found;
}

PollResult EpollSet::find_move() noexcept {
  if (look_inside_.load(std::memory_order_relaxed)) return PollResult::kReady;
  if (any_dirty_.load(std::memory_order_relaxed)) return PollResult::kReady;
  bool interrupted = queue_.empty();  // another thread has armed them all
  for (Item& item : queue_) {
    if (!item.put_off) return PollResult::kReady;
    const bool filled =
        (item.mask & epoll::kOutput) != 0 && item.stream->blocked() != item.blocked_at_look;
    const PollResult found = filled ? PollResult::kReady
                              : item.stream->look_at_channel(item.seen_arrivals, item.awaits_room,
                                                             item.seen_shutdowns);
    interrupted |= found == PollResult::kInterrupted;
    if (found != PollResult::kReady) continue;
    item.put_off = false;
    return PollResult::kReady;
  }
  return interrupted ? PollResult::kInterrupted : PollResult::kNothing;
}

// Until a stream has moved, the program's instance has something else to tell, or a handler has
// run.
void EpollSet::poll(int epfd, std::int64_t deadline_ns, const sigset_t* mask) noexcept {
  std::int64_t longest_ns;
  {
    MutexLock lock(mutex_);
    longest_ns = put_off_spin_ns_;
  }
  if (deadline_ns != kForever) {
    longest_ns = std::clamp<std::int64_t>(deadline_ns - sys::now_ns(), 0, longest_ns);
  }
  signals::begin_wait();
  unsigned looks = 0;
  const auto look = [&]() noexcept {
    if (signals::came_since_begin()) return PollResult::kInterrupted;
    const PollResult found = look_for_moves();
    if (found != PollResult::kNothing || ++looks % kLooksPerQuestion != kLooksPerQuestion / 2) {
      return found;
    }
    if (mask != nullptr && signals::lets_one_in(*mask)) return PollResult::kInterrupted;
    pollfd others{epfd, POLLIN, 0};
    timespec zero{0, 0};
    const bool there = sys::ppoll(&others, 1, &zero, nullptr) > 0;
    return there ? PollResult::kReady : PollResult::kNothing;
  };
  poller_.poll_until(look, longest_ns);
}

// ---- Sleeping

// A real wait. As epoll_pwait2(2).
int EpollSet::sleep(int epfd, epoll_event* out, int max, std::int64_t deadline_ns,
                    const sigset_t* mask) {
  if (deadline_ns == 0) return calls_.pwait(epfd, out, max, 0, mask);
  if (deadline_ns == kForever) return calls_.pwait(epfd, out, max, -1, mask);
  const std::int64_t left = std::max<std::int64_t>(0, deadline_ns - sys::now_ns());
  if (calls_.pwait2 != nullptr) {
    const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
    const int n = calls_.pwait2(epfd, out, max, &timeout, mask);
    if (n >= 0 || errno != ENOSYS) return n;
  }
  const std::int64_t ms = std::min<std::int64_t>((left + 999'999) / 1'000'000,
                                                 std::numeric_limits<int>::max());
  return calls_.pwait(epfd, out, max, static_cast<int>(ms), mask);
}

// Whether there may be room now that there was none for while a stream changed its carrier.
bool EpollSet::outlast_switches() noexcept {
  std::vector<StreamPtr> asked;
  bool changed = false;
  try {
    MutexLock lock(mutex_);
    changed = std::exchange(room_.held, false);  // and over by now, perhaps
    if (!changed && !Stream::any_switches()) return false;
    for (const auto& [id, item] : items_) {
      const bool wants_room = (item->mask & epoll::kOutput) != 0 && !item->disabled;
      const State now = item->stream->state();
      if (wants_room && (now == State::kSwitching || now == State::kResuming)) {
        asked.push_back(item->holds);
      }
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  const std::int64_t asked_ns = sys::now_ns();
  for (const StreamPtr& stream : asked) {
    if (stream->outlast_switch(asked_ns)) return true;
  }
  return changed;
}

// The kernel has something to tell, and the array no memory. If that was only the library's own news, the
// program has nothing to hear of yet. What another descriptor has to tell stays in the kernel. As
// epoll_wait(2); 0: there was no other cause. Not a member of WaitCall, whose own are kept in registers.
int EpollSet::find_after_fault(int epfd, epoll_event* out, int max) noexcept {
  const auto is_news = [this] {
    const MutexLock lock(mutex_);
    return read_inner();
  };
  if (is_news()) return 0;
  pollfd all{epfd, POLLIN, 0};
  timespec zero{0, 0};
  if (sys::ppoll(&all, 1, &zero, nullptr) <= 0) {
    // Another thread has heard the news, or the kernel refuses the address before it looks.
    int n = calls_.pwait(epfd, out, max, 0, nullptr);
    if (n > 0 && hide(out, n) != 0) has_news();
    if (n >= 0 || errno != EFAULT) return n;
  }
  if (is_news()) return 0;
  errno = EFAULT;
  return -1;
}

// A thread that is to be woken by news, also when it is cancelled in its sleep.
class EpollSet::Sleeper {
 public:
  explicit Sleeper(EpollSet& set) noexcept : set_(set) {}
  ~Sleeper() { leave(); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  // False: there is news already.
  bool enter() noexcept {
    MutexLock lock(set_.dirty_mutex_);
    if (set_.any_dirty_.load(std::memory_order_relaxed)) return false;
    set_.sleepers_.fetch_add(1, std::memory_order_relaxed);
    inside_ = true;
    return true;
  }
  void leave() noexcept {
    if (!inside_) return;
    MutexLock lock(set_.dirty_mutex_);
    set_.sleepers_.fetch_sub(1, std::memory_order_relaxed);
    inside_ = false;
  }
  bool inside() const noexcept { return inside_; }

 private:
  EpollSet& set_;
  bool inside_ = false;
};

// One call of wait(). Each turn looks at the streams, polls or asks the kernel, and looks again where that
// has had news of streams.
class EpollSet::WaitCall {
 public:
  WaitCall(EpollSet& set, int epfd, epoll_event* out, int max, std::int64_t deadline_ns,
           const sigset_t* mask) noexcept
      : set_(set), epfd_(epfd), out_(out), max_(max), deadline_ns_(deadline_ns), mask_(mask),
        sleeper_(set) {}

  // The events' number, or -1 with errno.
  [[gnu::always_inline]] int run() {
    for (;;) {
      const Step step = take_turn();
      if (step == Step::kAgain) continue;
      if (step == Step::kFailed) return -1;
      errno = saved_errno_;
      return n_;
    }
  }

 private:
  // Its parts are inlined: a message has a budget of instructions.
  enum class Step : std::uint8_t { kGoOn, kAgain, kDone, kFailed };

  [[gnu::always_inline]] Step take_turn() {
    last_ = deadline_ns_ != kForever && (deadline_ns_ == 0 || sys::now_ns() >= deadline_ns_);
    foreign_ = set_.foreign_.load(std::memory_order_relaxed);
    n_ = streams_most_ = 0;
    promised_ = poll_first_ = false;
    if (!foreign_) {
      const Step step = look_first();
      if (step != Step::kGoOn) return step;
    }
    if (poll_first_) {
      set_.poll(epfd_, deadline_ns_, mask_);
      polled_ = true;
      return Step::kAgain;
    }
    if (n_ >= max_) {
      if (!promised_) set_.unasked_.fetch_add(1, std::memory_order_relaxed);
      return Step::kDone;
    }
    set_.unasked_.store(0, std::memory_order_relaxed);
    const bool sleeps = sleeper_.inside() || (foreign_ && !last_);
    if (n_ == 0 && sleeps && is_interrupted()) return interrupted();
    if (hardly_ever(!ask_kernel(sleeps))) {
      n_ = errno == EFAULT && !foreign_ ? set_.find_after_fault(epfd_, out_, max_) : -1;
      return n_ < 0 ? Step::kFailed : n_ > 0 ? Step::kDone : Step::kAgain;
    }
    return look_again(sleeps);
  }

  // What the streams have to tell. If that is nothing the thread is one that sleeps, or is to poll before.
  [[gnu::always_inline]] Step look_first() noexcept {
    MutexLock lock(set_.mutex_);
    streams_most_ = set_.kernel_is_next() ? max_ / 2 : max_;
    if (number_ == 0) number_ = ++set_.waits_;
    // And so with what is promised, which is neither's turn.
    set_.room_.began = set_.room_.owed && !set_.room_.began;
    if (set_.room_.began) {
      n_ = set_.promise_room(number_, out_, max_);
      promised_ = n_ > 0;
      if (promised_) streams_most_ = max_;
    }
    set_.polls_ = !last_ && !polled_ && n_ == 0 && streams_most_ > 0 && set_.may_poll(mask_);
    set_.put_off_spin_ns_ = 0;
    n_ += set_.collect(number_, out_ + n_, std::max(streams_most_ - n_, 0));
    set_.room_.owed = n_ >= max_ && set_.room_.held;
    if (hardly_ever(set_.faulted_)) return no_memory();
    poll_first_ = std::exchange(set_.polls_, false) && n_ == 0 && set_.left_unarmed_;
    if (n_ > 0 || streams_most_ == 0 || last_ || poll_first_) return Step::kGoOn;
    if (set_.left_unarmed_) return Step::kAgain;
    // The kernel would have slept, and been woken by it.
    if (polled_ && signals::came_since_begin()) return interrupted();
    return sleeper_.enter() ? Step::kGoOn : Step::kAgain;
  }

  // A handler may have run as the sleep before this one ended by news of the library's own. Outside of the
  // sleep the program's mask does not hold, and what runs there would have come behind the call.
  bool is_interrupted() const noexcept {
    return interrupted_ || (slept_ && mask_ == nullptr && signals::came_since_begin());
  }

  static Step interrupted() noexcept {
    errno = EINTR;
    return Step::kFailed;
  }

  // There is none for the next event, which the next wait tells.
  [[gnu::cold]] Step no_memory() const noexcept {
    if (n_ > 0) return Step::kDone;
    errno = EFAULT;
    return Step::kFailed;
  }

  // What the kernel has to tell, behind what there is. False: nothing but an error, with errno.
  [[gnu::always_inline]] bool ask_kernel(bool sleeps) {
    if (sleeps && (mask_ != nullptr || (!slept_ && !polled_))) signals::begin_wait();
    int m = set_.sleep(epfd_, out_ + n_, max_ - n_, sleeps ? deadline_ns_ : 0, mask_);
    // One that only the mask has held back comes as news of the library's own ends the sleep: it would have
    // come behind the call.
    interrupted_ |= sleeps && signals::came_since_begin() &&
                    (m <= 0 || mask_ == nullptr || signals::blocks_no_more(*mask_));
    slept_ |= sleeps;
    sleeper_.leave();
    set_.kernel_had_some_.store(m > 0, std::memory_order_relaxed);
    if (m < 0 && n_ == 0) return false;
    m = std::max(m, 0);
    asks_more_ = m == max_ - n_;
    news_ = m > 0 ? find_inner(out_ + n_, m) : nullptr;
    if (news_ == nullptr) {
      n_ += m;
      return true;
    }
    std::copy(news_ + 1, out_ + n_ + m, news_);
    set_.has_news();
    n_ += m - 1;
    return true;
  }

  // Ours had the place of another's, which the program may have no other chance to hear of, and no stream has
  // taken it.
  [[gnu::cold]] void ask_for_more() {
    int more = set_.calls_.pwait(epfd_, out_ + n_, max_ - n_, 0, nullptr);
    if (more > 0 && hide(out_ + n_, more) != 0) set_.has_news();
    n_ += std::max(more, 0);
  }

  // After the kernel: its news of streams, and whether the call is over.
  [[gnu::always_inline]] Step look_again(bool sleeps) {
    if ((news_ != nullptr || streams_most_ < max_) && n_ < max_ && !foreign_) {
      MutexLock lock(set_.mutex_);
      set_.moved_ = false;
      const int streams = set_.collect(number_, out_ + n_, max_ - n_, n_ > 0);
      // The kernel's batch is in the order of arrival: the streams' news came when the inner instance did.
      if (news_ != nullptr && news_ != out_ + n_) {
        std::rotate(news_, out_ + n_, out_ + n_ + streams);
      }
      n_ += streams;
      if (hardly_ever(set_.faulted_)) return no_memory();
      if (n_ == 0 && set_.moved_) return Step::kAgain;  // the kernel has it to tell
    }
    if (news_ != nullptr && asks_more_ && n_ < max_) ask_for_more();
    if (n_ == 0 && last_ && !std::exchange(outlasted_, true) && set_.outlast_switches()) {
      return Step::kAgain;
    }
    if (n_ == 0 && !last_ && (!sleeps || news_ != nullptr)) return Step::kAgain;
    if (n_ > 0 && !foreign_) promise_the_rest();
    return Step::kDone;
  }

  [[gnu::always_inline]] void promise_the_rest() noexcept {
    MutexLock lock(set_.mutex_);
    set_.room_.owed = false;
    if (!set_.room_.held) return;
    n_ += set_.promise_room(number_, out_ + n_, max_ - n_);
    if (!set_.room_.held && n_ < max_) {  // it is over
      n_ += set_.collect(number_, out_ + n_, max_ - n_);
    }
    set_.room_.owed = n_ == max_ && set_.room_.held;
  }

  EpollSet& set_;
  const int epfd_;
  epoll_event* const out_;
  const int max_;
  const std::int64_t deadline_ns_;
  const sigset_t* const mask_;
  const int saved_errno_ = errno;
  Sleeper sleeper_;
  std::uint64_t number_ = 0;  // of this wait, once it has looked at streams
  bool outlasted_ = false;    // it has waited for streams that change their carrier
  bool polled_ = false;
  bool slept_ = false;
  bool interrupted_ = false;  // a handler has run in a sleep
  // In this turn:
  int n_ = 0;                     // events so far
  int streams_most_ = 0;          // those that streams may have before the kernel is asked
  bool last_ = false;             // the time is over
  bool foreign_ = false;          // the streams are a parent's, and the kernel tells all
  bool promised_ = false;         // it began with promise_room()
  bool poll_first_ = false;       // before it sleeps
  epoll_event* news_ = nullptr;   // where the inner instance was in the kernel's batch
  bool asks_more_ = false;        // the batch was full
};

int EpollSet::wait(int epfd, epoll_event* out, int max, std::int64_t deadline_ns,
                   const sigset_t* mask) {
  return WaitCall(*this, epfd, out, max, deadline_ns, mask).run();
}

}  // namespace ringroad
