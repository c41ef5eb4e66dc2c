// The program's listeners, and how this process answers promotion requests for them.
//
// A listener is answered for from listen() on until it is closed and everything that it accepted is
// closed: peers ask under its address, and a program may close it after the one connection that it waits
// for.
//
// Processes that share a listener by fork share the socket that answers for it over shm. One of them, its
// responder, listens there (ProcessGroup). The others watch the responder and succeed it when it stops.
// What is asked meanwhile waits in the socket's queue.
//
// Thread rule: per section. Rank of mutex_: after Agent's, before StreamRegistry's.
//
// Invariant: mutex_ is held from the moment that a transport makes a descriptor for a listener until the
// registry knows it, and over fork(2). So a child has the descriptor and knows it, or has neither.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <map>

#include "rsocket-core/agent/agent_host.h"
#include "rsocket-core/agent/agent_loop.h"
#include "rsocket-core/agent/stream_registry.h"
#include "rsocket-core/agent/transports.h"
#include "rsocket-core/base/mutex.h"
#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/process/process_group.h"

namespace ringroad {

class ListenerRegistry {
 public:
  // All live as long as the process.
  ListenerRegistry(AgentHost& host, AgentLoop& loop, ProcessGroup& group, StreamRegistry& streams,
                   Transports& transports) noexcept
      : host_(host), loop_(loop), group_(group), streams_(streams), transports_(transports) {}
  ListenerRegistry(const ListenerRegistry&) = delete;
  ListenerRegistry& operator=(const ListenerRegistry&) = delete;

  // ---- Any thread
  // The program listens at `local`. False: no memory, and it is not known.
  bool add(const Endpoint& local, bool via_shm, bool via_rdma, const ListenerFacts& facts) noexcept
      RR_EXCLUDES(mutex_);
  // The program has closed it. True: the agent thread is to call stop_answering() with `rendezvous`.
  // `has_thread`: the agent's thread has started; else this process answers for none.
  bool remove(const Endpoint& local, bool has_thread, int& rendezvous) noexcept RR_EXCLUDES(mutex_);
  // An accepted connection at `local` is closed: ends the closed listeners that have no other.
  void accepted_is_closed(const Endpoint& local) noexcept RR_EXCLUDES(mutex_);
  bool empty() noexcept RR_EXCLUDES(mutex_);
  // Whether `stream` is the first that other processes may have to find here, over each of its carriers.
  // True: the agent thread is to call be_found().
  bool needs_to_be_found(const Stream& stream) noexcept;

  // ---- Agent thread
  // Answers for each listener that there is. A child of a fork does for those that it inherited.
  void begin() noexcept;
  // Answers for `local` if it can, or plans when to try again.
  void answer(const Endpoint& local) noexcept RR_EXCLUDES(mutex_);
  void stop_answering(const Endpoint& local, int rendezvous) noexcept RR_EXCLUDES(mutex_);
  // A closed listener accepts nothing: a request there for an unknown connection means another process, which
  // listens at that address by now. Ends the closed ones. True: there was one, and the other can answer.
  bool leave_closed(const Endpoint& local) noexcept RR_EXCLUDES(mutex_);
  // Has kLeaderCookie come when that process ends, or a member of the group stops answering. False:
  // nobody will tell, and the caller has to look again.
  bool watch_leader(pid_t process) noexcept;
  // kLeaderCookie has come.
  void leader_has_stopped() noexcept;
  // Answers under a name of this process' own for what it holds, and publishes the name in the group. It
  // goes by what was needed once: the stream that needed it may be closed by now, and the next one says
  // nothing.
  void be_found() noexcept RR_EXCLUDES(mutex_);
  // When expire() is to be called next; CLOCK_MONOTONIC.
  std::int64_t next_deadline() const noexcept { return std::min(again_ns_, look_ns_); }
  void expire(std::int64_t now_ns) noexcept RR_EXCLUDES(mutex_);
  // Gives up what answers, for good. Transports::close_shm() must follow.
  void step_aside() noexcept RR_EXCLUDES(mutex_);

  // ---- fork(2). The lock is held over it.
  // Makes the group, with this process as responder for what it answers for. False: it cannot be made.
  bool create_group() noexcept RR_EXCLUDES(mutex_);
  void before_fork() noexcept RR_NO_THREAD_SAFETY_ANALYSIS { mutex_.lock(); }
  void after_fork_parent() noexcept RR_NO_THREAD_SAFETY_ANALYSIS { mutex_.unlock(); }
  // The child keeps the parent's open listeners, and answers for none yet.
  void after_fork_child() noexcept RR_NO_THREAD_SAFETY_ANALYSIS;

 private:
  static constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
  // Pauses before the next try at an address that another process answers for, of which nobody tells when it
  // stops, or for which something was short.
  static constexpr std::int64_t kFirstPauseNs = 1'000'000'000;
  static constexpr std::int64_t kLongestPauseNs = 32'000'000'000;
  // Between two looks at the paths of the rendezvous directory.
  static constexpr std::int64_t kLookNs = 10'000'000'000;

  struct Listener {
    bool shm = false;
    bool rdma = false;
    ListenerFacts facts;
    unsigned count = 0;   // 0: closed, but what it accepted is not
    int rendezvous = -1;  // what answers over shm; a child has it too
  };
  // What became of a listener at each transport.
  struct Answering {
    enum class At : std::uint8_t {
      kNowhere,
      kHere,
      kElsewhere,
      kNotYet,  // memory or descriptors were short; tried again
      kFailed
    };
    At shm = At::kNowhere;
    At path = At::kNowhere;  // over shm, for other network namespaces
    ListenerFacts facts;     // with which a path was tried
    At rdma = At::kNowhere;
  };

  // Ends the closed listeners that may have accepted a connection at `local` and have none that is open, or
  // `in_any_case`. True: there was one.
  bool end_closed(const Endpoint& local, bool in_any_case) noexcept RR_REQUIRES(mutex_);
  Reason listen_shm(const Endpoint& local) noexcept RR_EXCLUDES(mutex_);
  Reason listen_rdma(const Endpoint& local) noexcept;
  // Notes what came of a try, plans the next one and writes the log.
  void settle(const Endpoint& local, const char* carrier, Answering::At& at, Reason reason) noexcept;
  bool try_become_responder(const Endpoint& local, Carrier carrier) noexcept;
  // Has the paths of the rendezvous directory looked at, now and then.
  void look_from_now_on() noexcept;
  void forget_leaders() noexcept;

  AgentHost& host_;
  AgentLoop& loop_;
  ProcessGroup& group_;
  StreamRegistry& streams_;
  Transports& transports_;

  Mutex mutex_ RR_RANK(listeners);
  std::map<Endpoint, Listener> listeners_ RR_GUARDED_BY(mutex_);
  // What answers over shm for this process alone: not for a child to keep.
  int lone_rendezvous_ RR_GUARDED_BY(mutex_) = -1;

  // Set once be_found() is wanted for a carrier; any thread.
  std::atomic<bool> found_over_shm_{false};
  std::atomic<bool> found_over_rdma_{false};

  // Agent thread only.
  std::map<Endpoint, Answering> answering_;
  std::int64_t again_ns_ = kForever;
  std::int64_t look_ns_ = kForever;
  std::int64_t pause_ns_ = kFirstPauseNs;
  bool group_watched_ = false;
  bool leader_is_watched_ = false;  // the one that answers for the listener that was tried last
  std::map<pid_t, int> leaders_;    // processes that answer instead of this one: pidfd_open(2)
  Rendezvous found_at_;
  Answering found_;  // whether found_at_ answers
};

}  // namespace ringroad
