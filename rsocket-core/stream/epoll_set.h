// What one of the program's epoll instances knows of streams.
//
// The program's instance stays the kernel's, and holds everything of the program's but its streams.
// In their place it holds one descriptor of ours, the inner instance, which holds what may change a
// stream: its TCP socket while the kernel carries it, its channel's wait_fd(), and an eventfd for
// news from inside the process.
//
//   program's instance ── its other descriptors
//                      └─ inner instance (EPOLLET) ── TCP sockets ── as the program asked for them
//                                                  ├─ channels     (EPOLLET, drained only where they must be)
//                                                  └─ eventfd      (EPOLLET, never drained)
//
// An event on the inner instance says only that streams have to be looked at. What a stream has to say is
// worked out as the kernel does it for its own: a stream that may be ready stands in a queue, is asked when
// the program waits, and goes to the queue's end again if it is level-triggered and was ready. So a wait
// costs as many looks as there are streams that may be ready.
//
// A channel is armed, so that its peer has to wake somebody, by the last look before a sleep, and
// not while the program is at work or the wait polls: a stream whose channel is not armed stays in
// the queue.
//
// A stream that is the kernel's for good moves into the program's instance and is forgotten here. At a fork a
// stream is lent: it moves into the program's instance, which a child then has as well, and its item stays
// here, asleep, until no other process has the stream and the instance.
//
// Thread rule: any thread. Its mutex is taken before a stream's; nobody sleeps with it.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <boost/intrusive/list.hpp>
#include <csignal>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "rsocket-core/base/hints.h"
#include "rsocket-core/base/mutex.h"
#include "rsocket-core/stream/adaptive_poller.h"
#include "rsocket-core/stream/epoll_item.h"
#include "rsocket-core/stream/unmanaged_waiters.h"

namespace ringroad {

class EpollSet {
 public:
  // How the program would wait: libc's functions, which are cancellation points. `pwait2` may be null.
  struct Calls {
    int (*pwait)(int, epoll_event*, int, int, const sigset_t*) = nullptr;
    int (*pwait2)(int, epoll_event*, int, const timespec*, const sigset_t*) = nullptr;
  };

  // Puts an inner instance into the program's instance `epfd`. Null with errno: what epoll_ctl(2) says of
  // an `epfd` that is none, or what there is too little of.
  static std::shared_ptr<EpollSet> create(int epfd, const Calls& calls) noexcept;
  ~EpollSet();
  EpollSet(const EpollSet&) = delete;
  EpollSet& operator=(const EpollSet&) = delete;

  // As epoll_ctl(2): 0 or an errno. A stream may be here under several numbers of its file, once
  // each. `disabled`: it has fired, and waits for modify() (EPOLLONESHOT). ECANCELED: its last
  // number is being closed.
  int add(const StreamPtr& stream, int fd, const epoll_event& event, bool disabled) noexcept
      RR_EXCLUDES(mutex_);
  // ENOENT: the stream is not here under this number, and is the kernel's to answer for. `alone`: if it is
  // lent, it is taken back, as no other process has it or the instance.
  int modify(const Stream& stream, int fd, const epoll_event& event, bool alone = false) noexcept
      RR_EXCLUDES(mutex_);
  int remove(const Stream& stream, int fd) noexcept RR_EXCLUDES(mutex_);
  bool has(const Stream& stream, int fd) noexcept RR_EXCLUDES(mutex_);
  // The program has closed the last descriptor of `stream`. Before it is closed.
  void forget(const Stream& stream) noexcept RR_EXCLUDES(mutex_);
  // The program closes the number `fd` of `stream`, which has others. Before that, or, if it is `gone`,
  // after.
  void number_goes(const Stream& stream, int fd, bool gone) noexcept RR_EXCLUDES(mutex_);
  // Streams that are the kernel's for good by now go to it.
  void hand_back() noexcept RR_EXCLUDES(mutex_);
  // No stream is to come here any more: closes the descriptors, if there is none here.
  void retire() noexcept RR_EXCLUDES(mutex_, dirty_mutex_);

  // ---- Lent to the kernel
  // The process is about to fork: the kernel answers for all streams that it can serve.
  void lend_all() noexcept RR_EXCLUDES(mutex_);
  enum class Lent : std::uint8_t {
    kNot,
    kReturnable,
    kUntilModified,  // EPOLLONESHOT: nobody can say whether the kernel has told of it
  };
  Lent lent(const Stream& stream) noexcept RR_EXCLUDES(mutex_);
  // The set answers for it again. REQUIRES: kReturnable, and no other process has the stream or the instance.
  void take_back(const Stream& stream) noexcept RR_EXCLUDES(mutex_);
  // What the process' family calls the instance (ProcessGroup::ConnectionId); 0: it is not entered there.
  std::uint64_t share() const noexcept { return share_.load(std::memory_order_relaxed); }
  void set_share(std::uint64_t share) noexcept { share_.store(share, std::memory_order_relaxed); }
  std::uint64_t take_share() noexcept { return share_.exchange(0, std::memory_order_relaxed); }
  // The instance is the parent's, with its streams.
  bool foreign() const noexcept { return foreign_.load(std::memory_order_relaxed); }

  // The inner instance's event, which no program may see, and which a wait that began before the set was
  // made, or under a number that was never seen, may find. hide() takes it out of a wait's `count`
  // events; its tag, or 0.
  static unsigned made() noexcept { return made_.load(std::memory_order_relaxed); }
  static std::uint64_t hide(epoll_event* events, int& count) noexcept;
  std::uint64_t tag() const noexcept { return tag_; }
  // hide() has found this one's.
  void has_news() noexcept { look_inside_.store(true, std::memory_order_release); }

  // As epoll_pwait2(2) on the program's instance `epfd`. CLOCK_MONOTONIC; 0: do not sleep.
  int wait(int epfd, epoll_event* out, int max, std::int64_t deadline_ns, const sigset_t* mask)
      RR_EXCLUDES(mutex_);
  // The program's instance is in another one, or in the set of a poll(): from now on it is readable
  // whenever one of its streams is.
  void watch() noexcept RR_EXCLUDES(mutex_, dirty_mutex_);

  // The number of the program's instance; it may come to have another one.
  int number() const noexcept { return epfd_.load(std::memory_order_relaxed); }
  void renumber(int epfd) noexcept { epfd_.store(epfd, std::memory_order_relaxed); }
  // Whether `epfd` is a number of the same instance.
  bool is_in(int epfd) noexcept RR_EXCLUDES(mutex_);
  // In the child of a fork: the streams are the parent's. Hides the inner instance, which the child's
  // copy of the program's instance still holds.
  void after_fork_child() noexcept RR_NO_THREAD_SAFETY_ANALYSIS;

 private:
  using Item = EpollItem;
  // By Stream::id(), and a count above it where the stream is here under several numbers.
  using Items = std::unordered_map<std::uint64_t, std::unique_ptr<Item>>;
  static constexpr int kCountShift = 48;
  static constexpr std::uint64_t kMostNumbers = std::uint64_t{1} << 14;
  static std::uint64_t key_of(const Stream& stream, std::uint64_t number) noexcept {
    return stream.id() | number << kCountShift;
  }

  class Sleeper;
  class WaitCall;
  // Room to send that is told of while streams change their carrier.
  struct RoomPromise {
    bool held = false;     // a look found none for that
    bool owed = false;     // there was no place to tell of it
    bool began = false;    // the last wait began with it
    std::size_t from = 0;  // where it goes on, in the order of items_
  };

  EpollSet(int epfd, const Calls& calls, int inner, int wake) noexcept;
  static int control(int instance, int op, int fd, std::uint32_t events, std::uint64_t data) noexcept;
  static epoll_event* find_inner(epoll_event* events, int count) noexcept;  // null: it is not there
  static void on_news(Waiter& waiter) noexcept;
  void wake() noexcept RR_EXCLUDES(dirty_mutex_);

  // ---- Membership (epoll_membership.cc)
  Item* find(const Stream& stream, int fd) noexcept RR_REQUIRES(mutex_);
  Item* find_any(std::uint64_t stream_id) noexcept RR_REQUIRES(mutex_);
  void changed(Item& item) noexcept RR_REQUIRES(mutex_);
  void take_out(Item& item) noexcept RR_REQUIRES(mutex_) RR_EXCLUDES(dirty_mutex_);
  void erase(Item& item) noexcept RR_REQUIRES(mutex_);
  void give_to_kernel(Item& item) noexcept RR_REQUIRES(mutex_);
  bool kernel_can_have(const Item& item) const noexcept RR_REQUIRES(mutex_);
  void lend(Item& item) noexcept RR_REQUIRES(mutex_);
  bool take_back(Item& item) noexcept RR_REQUIRES(mutex_);
  int modify_lent(Item& item, const epoll_event& event) noexcept RR_REQUIRES(mutex_);

  // ---- Looks (epoll_look.cc)
  void enqueue(Item& item) noexcept RR_REQUIRES(mutex_);
  void take_dirty() noexcept RR_REQUIRES(mutex_) RR_EXCLUDES(dirty_mutex_);
  void take_news() noexcept RR_REQUIRES(mutex_) RR_EXCLUDES(dirty_mutex_);
  void take_inner() noexcept RR_REQUIRES(mutex_);
  bool take_only_item() noexcept RR_REQUIRES(mutex_), read_inner() noexcept RR_REQUIRES(mutex_);
  static int kernel_number(const Item& item) noexcept;
  static std::uint32_t kernel_wants(const Item& item, const Stream::PollPlan& plan) noexcept;
  static std::uint32_t kernel_has(const Item& item, short bits) noexcept;
  static bool repeats_only(const Item& item, std::uint32_t bits) noexcept;
  bool watch_kernel(Item& item, const Stream::PollPlan& plan) noexcept RR_REQUIRES(mutex_);
  void watch_channel(Item& item, const Stream::PollPlan& plan) noexcept RR_REQUIRES(mutex_);
  std::uint32_t kernel_says(Item& item, const Stream::PollPlan& plan, bool in_any_case,
                            bool consume) noexcept RR_REQUIRES(mutex_);
  bool is_anothers(Item& item, const Stream::PollPlan& plan) noexcept RR_REQUIRES(mutex_);
  bool look(Item& item, epoll_event& out, bool consume, bool stays = false) noexcept RR_REQUIRES(mutex_);
  bool look_closely(Item& item, epoll_event& out, bool consume, bool stays) noexcept RR_REQUIRES(mutex_);
  Stream::PollPlan plan_closely(Item& item, bool consume, bool exclusive) noexcept RR_REQUIRES(mutex_);
  void settle_look(Item& item, const Stream::PollPlan& plan, std::uint32_t events) noexcept
      RR_REQUIRES(mutex_);
  bool tell_plainly(Item& item, const Stream::PollPlan& plan, epoll_event& out,
                    bool unarmed) noexcept RR_REQUIRES(mutex_);
  void note_unarmed(Item& item, const Stream::PollPlan& plan) noexcept RR_REQUIRES(mutex_);
  void prefetch_queued() noexcept RR_REQUIRES(mutex_);
  void settle() noexcept RR_REQUIRES(mutex_);
  int collect(std::uint64_t wait, epoll_event* out, int max, bool asked = false) noexcept
      RR_REQUIRES(mutex_);
  int promise_room(std::uint64_t wait, epoll_event* out, int max) noexcept RR_REQUIRES(mutex_);

  // ---- Waits (epoll_wait.cc)
  bool kernel_is_next() const noexcept RR_REQUIRES(mutex_);
  bool may_poll(const sigset_t* mask) noexcept RR_REQUIRES(mutex_);
  PollResult look_for_moves() noexcept RR_EXCLUDES(mutex_);
  PollResult find_move() noexcept RR_REQUIRES(mutex_);
  void poll(int epfd, std::int64_t deadline_ns, const sigset_t* mask) noexcept RR_EXCLUDES(mutex_);
  int sleep(int epfd, epoll_event* out, int max, std::int64_t deadline_ns, const sigset_t* mask);
  [[gnu::cold]] int find_after_fault(int epfd, epoll_event* out, int max) noexcept RR_EXCLUDES(mutex_);
  bool outlast_switches() noexcept RR_EXCLUDES(mutex_);

  bool somebody_sleeps() const noexcept {
    return sleepers_.load(std::memory_order_relaxed) > 0 ||
           always_wake_.load(std::memory_order_relaxed) || unmanaged_waiters::anybody();
  }

  static std::atomic<unsigned> made_ RR_HIDDEN;

  std::atomic<int> epfd_;
  const std::uint64_t tag_;
  const Calls calls_;
  int inner_;
  int wake_;
  std::atomic<bool> foreign_{false};
  std::atomic<std::uint64_t> share_{0};

  Mutex mutex_ RR_RANK(epoll_set) RR_ACQUIRED_BEFORE(dirty_mutex_);
  Items items_ RR_GUARDED_BY(mutex_);
  std::uint64_t numbers_ RR_GUARDED_BY(mutex_) = 1;  // the most that a stream ever was here under
  std::uint64_t waits_ RR_GUARDED_BY(mutex_) = 0;
  std::uint64_t collects_ RR_GUARDED_BY(mutex_) = 1;  // the one under way, or the next
  using Queue = boost::intrusive::list<
      Item, boost::intrusive::member_hook<Item, Item::QueueHook, &Item::in_queue>>;
  Queue queue_ RR_GUARDED_BY(mutex_);
  bool watched_ RR_GUARDED_BY(mutex_) = false;
  std::atomic<unsigned> unasked_{0};       // waits since the kernel was asked last, and whether
  std::atomic<bool> kernel_had_some_{false};  // it had something to tell
  RoomPromise room_ RR_GUARDED_BY(mutex_);
  bool polls_ RR_GUARDED_BY(mutex_) = false;         // looks arm nothing, as the wait polls before it sleeps
  bool left_unarmed_ RR_GUARDED_BY(mutex_) = false;  // the last round of looks has, of what had nothing new
  bool alone_ RR_GUARDED_BY(mutex_) = false;         // nobody sleeps here
  // The longest `spin` of the streams' rules: of all that ever were here, and of those put off by a wait.
  std::int64_t longest_spin_ns_ RR_GUARDED_BY(mutex_) = 0, put_off_spin_ns_ RR_GUARDED_BY(mutex_) = 0;
  AdaptivePoller poller_;
  bool again_ RR_GUARDED_BY(mutex_) = false;  // a look has put something into the inner instance
  bool moved_ RR_GUARDED_BY(mutex_) = false;  // a look has given a stream to the kernel
  bool faulted_ RR_GUARDED_BY(mutex_) = false;  // the program's array has no memory for the next event
  std::atomic<bool> look_inside_{false};  // the inner instance may have something to say

  Mutex dirty_mutex_ RR_RANK(epoll_news);  // taken with streams' locks held
  boost::intrusive::list<
      Item, boost::intrusive::base_hook<boost::intrusive::list_base_hook<boost::intrusive::tag<Item>>>>
      dirty_ RR_GUARDED_BY(dirty_mutex_);
  // Changed with the lock. A holder of mutex_ reads them without: no thread comes to sleep then.
  std::atomic<bool> any_dirty_{false}, any_in_place_{false};  // the latter: looked at with inner_'s events
  std::atomic<unsigned> sleepers_{0};
  std::atomic<bool> always_wake_{false};
};

}  // namespace ringroad
