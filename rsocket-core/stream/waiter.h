// A thread that sleeps until something about a stream changes.
//
// Sleepers wait in the kernel on the stream's own descriptors (its TCP socket or its channel's
// wait_fd) *and* on one of their thread. By that another thread of the process (the agent, a shutdown(), a
// reader that found credits for a writer) tells a sleeper to look again. It is per thread, so that no wake-up
// can be swallowed by another sleeper.
#pragma once

#include <poll.h>

#include <atomic>
#include <boost/intrusive/list.hpp>
#include <cstdint>

#include "rsocket-core/base/mutex.h"
#include "rsocket-core/channel/channel.h"

namespace ringroad {

// The calling thread's descriptor to sleep on, made on first use and closed when the thread ends; -1 with
// errno when there is none to be had. It is an epoll instance: readable when wake_thread() was called, and
// when a channel that tells by edges has told something (thread_edges.h), until clear_wake() or
// thread_edges::take().
int thread_wake_fd() noexcept;
// Any thread.
void wake_thread(int wake_fd) noexcept;
void clear_wake(int wake_fd) noexcept;
// Peers could go on telling: a thread takes no more batches at once.
inline constexpr unsigned kMostWakeRounds = 4096;
// Names what is in the calling thread's instance, as it is now: no other has the number, and none has had it.
std::uint64_t thread_wake_number() noexcept;
// Something was taken out.
void renumber_thread_wake() noexcept;
// A handler of a signal runs in the calling thread between the two. A handler that sleeps may take what was
// to wake the call that it has interrupted, and that call may be about to sleep. So it is woken, to look
// again.
// No object with a destructor: a handler may end its thread, whose stack is unwound past here.
bool handler_begins() noexcept;
void handler_has_ended(bool begun) noexcept;  // what handler_begins() has said
// The calling thread is about to sleep on the word. A handler ends that, also where the kernel restarts it.
class SleepOnWord {
 public:
  explicit SleepOnWord(std::atomic<std::uint32_t>* word) noexcept;
  ~SleepOnWord();
  SleepOnWord(const SleepOnWord&) = delete;
  SleepOnWord& operator=(const SleepOnWord&) = delete;

 private:
  std::atomic<std::uint32_t>* const outer_;
};
// The thread needs it no more.
void close_thread_wake_fd() noexcept;
// In the child of a fork: the parent's descriptors are shared with it and must not be used.
void forget_wake_fds_after_fork() noexcept;

// Lives on the sleeping thread's stack, or in an EpollSet, in at most one WaitList at a time.
struct Waiter : boost::intrusive::list_base_hook<> {
  int wake_fd = -1;  // thread_wake_fd()
  short events = 0;  // POLLIN and POLLOUT bits that it sleeps for
  // Of the call of woken() under way: a wake-up of the channel is being taken, with its place in the order.
  bool takes_place = false;
  // Since it is in the list; with the list's lock.
  enum class Sleeps : std::uint8_t { kOnDescriptor, kOnWord, kNoMore } sleeps = Sleeps::kOnDescriptor;
  // Called instead of wake_thread(), if it is set: by any thread, with the stream's locks held.
  void (*woken)(Waiter&) noexcept = nullptr;
};

// A thread's, that may come to sleep on a word of memory (Channel::WaitWord).
struct ThreadWaiter final : Waiter {
  Channel::WaitWord on;
};

// How the program's own calls sleep, on descriptors as ppoll(2) and on a word as sys::futex_wait(): by system
// call unless set_sleep() has named another way, once, before there are streams. The preloaded library names
// some that are cancellation points. ECANCELED: the thread is ended in it, and the program's call returns at
// once with that. A `held` way is one in which it cannot be cancelled: a handler may end it even there.
using SleepCall = int (*)(pollfd*, nfds_t, const timespec*, const sigset_t*);
using WordSleepCall = int (*)(const std::atomic<std::uint32_t>*, std::uint32_t, const timespec*);
struct SleepCalls {
  SleepCall poll = nullptr;
  SleepCall held_poll = nullptr;
  WordSleepCall word = nullptr;
  WordSleepCall held_word = nullptr;
};
void set_sleep(const SleepCalls& calls) noexcept;
int cancellable_sleep(pollfd* fds, nfds_t count, const timespec* timeout) noexcept;
int held_sleep(pollfd* fds, nfds_t count, const timespec* timeout) noexcept;
int word_sleep(const Channel::WaitWord& on, const timespec* timeout, bool cancellable) noexcept;

// A sleeper is in the list first and looks then, a changer changes something first and wakes then: one
// of the two sees the other where both did so under the same lock. Without a lock the change and the look are
// seq_cst, as both are here.
//
// Thread rule: any thread.
class WaitList {
 public:
  void add(Waiter& waiter) noexcept RR_EXCLUDES(mutex_);
  void remove(Waiter& waiter) noexcept RR_EXCLUDES(mutex_);
  // `waiter`, which is in the list, is about to sleep on its word, and is woken there until it leaves. False:
  // it was woken already.
  bool sleeps_on_word(ThreadWaiter& waiter) noexcept RR_EXCLUDES(mutex_);
  // Wakes the waiters that sleep for one of `events`, `except` one. Costs one load when nobody sleeps.
  void wake(short events, const Waiter* except = nullptr) noexcept RR_EXCLUDES(mutex_) {
    if (!empty()) wake_those(events, except, false);
  }
  bool empty() const noexcept { return count_.load(std::memory_order_seq_cst) == 0; }
  // The same by a thread that takes the channel's wake-up: an epoll instance tells of that where it stands
  // among its events.
  void wake_in_place(short events, const Waiter* except = nullptr) noexcept RR_EXCLUDES(mutex_) {
    if (!empty()) wake_those(events, except, true);
  }
  // So by a thread that takes none and finds what it would tell of, if anybody is in the list but `except`.
  void wake_others(short events, const Waiter& except) noexcept RR_EXCLUDES(mutex_) {
    if (count_.load(std::memory_order_seq_cst) > 1) wake_those(events, &except, true);
  }

 private:
  void wake_those(short events, const Waiter* except, bool in_place) noexcept RR_EXCLUDES(mutex_);

  Mutex mutex_ RR_RANK(waiters);
  boost::intrusive::list<Waiter> waiters_ RR_GUARDED_BY(mutex_);
  std::atomic<unsigned> count_{0};
};

// A waiter that is in `list`, if that is not null, until this is told to leave, or ends.
class Listed {
 public:
  Listed(WaitList* list, Waiter& waiter) noexcept : list_(list), waiter_(waiter) {
    if (list != nullptr) list->add(waiter);
  }
  ~Listed() { leave(); }
  void leave() noexcept {
    if (list_ != nullptr) list_->remove(waiter_);
    list_ = nullptr;
  }
  Listed(const Listed&) = delete;
  Listed& operator=(const Listed&) = delete;

 private:
  WaitList* list_;
  Waiter& waiter_;
};

}  // namespace ringroad
