// The agent thread: its loop, its queue, and what it watches.
#include "rsocket-core/agent.h"

#include <poll.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <new>

#include "rsocket-core/above_limit.h"
#include "rsocket-core/foreign_fd.h"
#include "rsocket-core/outside.h"
#include "rsocket-core/sys.h"
#include "rsocket-core/tcp_counters.h"
#include "rsocket-core/waiter.h"

namespace ringroad {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
// A program that may have fewer open is to have them all.
constexpr rlim_t kFewestDescriptors = 64;

}  // namespace

Agent::Agent(const AgentOptions& options) noexcept
    : options_(options), mode_(options.mode) {}

PromotionId Agent::next_promotion_id() noexcept {
  static std::atomic<PromotionId> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

bool Agent::ensure_thread() noexcept {
  MutexLock lock(mutex_);
  if (started_) return running_.load(std::memory_order_relaxed);
  if (signals::thread_state.in_handler) return false;  // the next connection outside of one does it
  rlimit descriptors{};
  if (sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &descriptors) == 0 &&
      descriptors.rlim_cur < kFewestDescriptors) {
    return false;
  }
  started_ = true;
  if (segment_ == nullptr && options_.segment != nullptr) {
    segment_ = options_.segment();
    budget_.report_to(segment_);
    publish_mode();
  }
  int both[] = {
      sys::open_high([&] { return sys::epoll_create1(EPOLL_CLOEXEC); }),
      sys::open_high([&] { return sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })};
  move_above_limit(both, 2);
  const auto [epoll_fd, wake_fd] = both;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeCookie;
  bool ok = epoll_fd >= 0 && wake_fd >= 0 &&
            sys::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, wake_fd, &event) == 0;
  if (ok) {
    epoll_fd_.store(epoll_fd, std::memory_order_relaxed);
    wake_fd_.store(wake_fd, std::memory_order_relaxed);
    // No signal of the program's is ever handled on this thread.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 512 * 1024);
    pthread_t thread;
    running_.store(true, std::memory_order_release);
    outside::prepare();
    ok = pthread_create(&thread, &attributes, thread_main, this) == 0;
    if (ok) pthread_setname_np(thread, "ringroad");
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  if (!ok) {
    running_.store(false, std::memory_order_release);
    if (epoll_fd >= 0) sys::close_quietly(epoll_fd);
    if (wake_fd >= 0) sys::close_quietly(wake_fd);
    started_ = false;  // the next connection tries again
  }
  return ok;
}

void Agent::post(Command command) noexcept {
  if (!running_.load(std::memory_order_acquire)) return;
  try {
    MutexLock lock(queue_mutex_);
    queue_.push_back(std::move(command));
  } catch (const std::bad_alloc&) {
    return;
  }
  wake_thread();
}

// With the lock: it may close the descriptor, and the number be the program's (agent_aside.cc).
void Agent::wake_thread() noexcept {
  MutexLock lock(queue_mutex_);
  const int fd = wake_fd_.load(std::memory_order_relaxed);
  if (fd >= 0) sys::signal_eventfd(fd);
}

// ---- Called by programs' threads

StreamPtr Agent::open_stream(int fd, StreamRole role, const FourTuple& tuple,
                             const StreamConfig& config, bool nonblocking,
                             const EarlyUse& early) noexcept {
  const std::uint64_t share =
      role == StreamRole::kAccept && family_.joined() ? family_.enter(tuple) : 0;
  return make_stream(fd, role, tuple, config, nonblocking, false, share, early);
}

StreamPtr Agent::inherit_stream(int fd, StreamRole role, const FourTuple& tuple,
                                const StreamConfig& config, std::uint64_t share) noexcept {
  const int flags = sys::fcntl(fd, F_GETFL);
  return make_stream(fd, role, tuple, config, (flags & O_NONBLOCK) != 0, true, share, {});
}

StreamPtr Agent::make_stream(int fd, StreamRole role, const FourTuple& tuple,
                             const StreamConfig& config, bool nonblocking, bool inherited,
                             std::uint64_t share, const EarlyUse& early) noexcept {
  static std::atomic<std::uint64_t> next_id{1};
  const int saved = errno;
  StreamPtr stream;
  bool expected = false;
  if (ensure_thread()) {
    try {
      const auto make = [&](const StreamConfig& own) {
        return std::make_shared<Stream>(this, segment_, next_id.fetch_add(1), fd, role, tuple, own,
                                        nonblocking, early);
      };
      // A configuration is large for a small stack, and a copy is hardly ever needed.
      const auto make_at_once = [&]() __attribute__((noinline)) {
        StreamConfig own = config;
        own.promote_messages = 0;
        return make(own);
      };
      stream = mode_.load(std::memory_order_relaxed) == control::Mode::kRdma ? make_at_once()
                                                                             : make(config);
      if (inherited) {
        stream->begin_shared(share);
      } else {
        stream->set_share(share);
      }
      {
        MutexLock lock(mutex_);
        streams_[stream->id()] = stream;
        if (role == StreamRole::kAccept) {
          // accept(2) gives out connections that are over, whose addresses may be another's by now.
          std::weak_ptr<Stream>& known = accepted_[tuple];
          if (known.expired() || tcp_established(fd)) known = stream;
        }
        expected = role == StreamRole::kAccept && requests_wait_.load(std::memory_order_relaxed);
      }
      // Now that apply_to_all() would find it. Both look again after each change, so that the last
      // word is about what holds.
      for (Reason why; (why = why_kept(*stream)) != stream->kept();) {
        if (why != Reason::kNone) {
          stream->keep_on_tcp(why);
        } else {
          stream->let_off_tcp(false);
        }
      }
    } catch (const std::bad_alloc&) {
      stream.reset();
    }
  }
  if (stream == nullptr && share != 0) {
    // The kernel's, where the library does not look: nobody else may count on being alone.
    family_.keep(share);
    if (!inherited) family_.release(share);
  }
  // A wake-up of the agent thread costs more than all the rest of this.
  if (stream != nullptr && (needs_to_be_found(*stream) || expected)) {
    post({Task::kOffer, stream, {}, -1, {}});
  }
  errno = saved;
  return stream;
}

// Who looks says so and looks then (tell()); who makes one enters it in the table and asks then.
bool Agent::told_late(StreamRole role) noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (role == StreamRole::kAccept && requests_wait_.load(std::memory_order_relaxed)) return false;
  if (mode_.load(std::memory_order_relaxed) != control::Mode::kAuto) return false;
  if (!some_untold_.load(std::memory_order_relaxed) && !some_untold_.exchange(true)) {
    wake_thread();
  }
  return true;
}

bool Agent::tell(AgentOptions::Untold which, const Endpoint& remote) noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return options_.tell != nullptr && options_.tell(which, remote);
}

void Agent::tell_old(std::int64_t now_ns) noexcept {
  if (tell_old_at_ns_ > now_ns) return;
  tell_old_at_ns_ = kForever;
  some_untold_.store(false);  // who comes later says so again
  if (tell(AgentOptions::Untold::kOld)) some_untold_.store(true);
}

void Agent::stream_closed(Stream& stream, bool over) noexcept {
  if (const std::uint64_t share = stream.take_share(); share != 0) family_.release(share);
  MutexLock lock(mutex_);
  if (stream.role() == StreamRole::kAccept) {
    const auto it = accepted_.find(stream.tuple());
    // The same addresses may have been reused by a newer connection already.
    if (it != accepted_.end()) {
      const StreamPtr known = it->second.lock();
      if (known == nullptr || known->id() == stream.id()) accepted_.erase(it);
    }
    end_closed_listeners(stream.tuple().local, false);
  }
  if (over || stream.state() == State::kClosed) streams_.erase(stream.id());
}

void Agent::forget_closed(std::uint64_t id) noexcept {
  MutexLock lock(mutex_);
  streams_.erase(id);
}

void Agent::attend(Stream& stream) noexcept {
  if (!stream.claim_attention()) return;
  if (!running_.load(std::memory_order_acquire)) {
    stream.attention_given();
    return;
  }
  const int saved = errno;
  {
    MutexLock lock(queue_mutex_);
    StreamPtr& end = attended_ == nullptr ? attended_ : last_attended_->next_queued;
    end = stream.shared_from_this();
    last_attended_ = &stream;
  }
  wake_thread();
  errno = saved;
}

void Agent::start_promotion(Stream& stream) noexcept {
  stream.wants_promotion.store(true, std::memory_order_release);
  attend(stream);
}

void Agent::unwatch(Stream&, int old_fd) noexcept {
  epoll_event unused{};
  MutexLock lock(queue_mutex_);
  const int epoll_fd = epoll_fd_.load(std::memory_order_relaxed);
  if (epoll_fd >= 0) sys::epoll_ctl(epoll_fd, EPOLL_CTL_DEL, old_fd, &unused);
}

bool Agent::has_streams() noexcept {
  MutexLock lock(mutex_);
  return !streams_.empty();
}

void Agent::pin_unshareable() noexcept {
  each_stream([](const StreamPtr& stream) noexcept {
    const State state = stream->state();
    const bool on_tcp = state == State::kOnTcp || state == State::kConnecting;
    if (on_tcp && !stream->can_be_shared()) stream->pin(Reason::kFork, 0);
    return true;
  });
}

void Agent::pin_all(Reason reason) noexcept {
  each_stream([&](const StreamPtr& stream) noexcept {
    stream->pin(reason, 0);
    return true;
  });
}

bool Agent::holds_alone(const Stream& stream) noexcept {
  return family_.alone(stream.share());
}

bool Agent::has_back(Stream& stream) noexcept {
  if (!holds_alone(stream)) return false;
  const bool lent = stream.lent().load(std::memory_order_acquire) != 0;
  return !lent || (options_.take_back != nullptr && options_.take_back(stream));
}

void Agent::leave_all(Reason reason, std::int64_t timeout_ns) noexcept {
  // None is promoted while we wait for another. What is on TCP may be promoted after a fork.
  const bool may_go_on = reason == Reason::kFork || reason == Reason::kExec;
  if (may_go_on) held_.fetch_add(1);
  if (!running_.load(std::memory_order_acquire)) return;
  const std::int64_t deadline = sys::now_ns() + timeout_ns;
  each_stream([&](const StreamPtr& stream) noexcept {
    const State state = stream->state();
    if (stream->closed_by_program()) {
      if (reason != Reason::kFork) stream->leave_closed(reason);  // else it ends by itself
      return true;
    }
    if (!may_go_on) {
      stream->pin(reason, 0);
    } else if (state != State::kOnTcp) {
      stream->leave_channel(reason);  // for the time being: stream_fork.cc
    }
    return true;
  });
  Waiter waiter;
  waiter.events = POLLIN | POLLOUT;
  // Where there is no descriptor left to wait on, it looks again.
  waiter.wake_fd = reason == Reason::kNoDescriptors ? -1 : thread_wake_fd();
  const timespec nap{0, kNapNs};
  each_stream([&](const StreamPtr& stream) noexcept {
    if (reason == Reason::kFork && stream->closed_by_program()) return true;
    // For a peer that is stopped one fork waits, and not each of a server that makes a snapshot every minute.
    std::int64_t left = deadline - sys::now_ns();
    while (!stream->settled()) {
      if (reason == Reason::kFork && (left <= 0 || stream->kept_a_fork_waiting.load())) {
        stream->kept_a_fork_waiting.store(true);
        return true;
      }
      if (left <= 0) return false;
      if (waiter.wake_fd < 0) {
        left = deadline - sys::now_ns();
        if (left > 0) sys::call(SYS_nanosleep, &nap, nullptr);
        continue;
      }
      stream->waiters().add(waiter);
      left = deadline - sys::now_ns();
      if (!stream->settled() && left > 0) {
        pollfd fds{waiter.wake_fd, POLLIN, 0};
        timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
        if (sys::ppoll(&fds, 1, &timeout, nullptr) > 0) sys::drain_eventfd(waiter.wake_fd);
      }
      stream->waiters().remove(waiter);
    }
    return true;
  });
}

// ---- fork

Family::Member Agent::expect_child() noexcept {
  MutexLock lock(mutex_);
  if (listeners_.empty() && streams_.empty() && !family_.exists()) return 0;
  if (!family_.exists()) {
    if (!family_.create()) return 0;
    // Until now there was nobody who could have had them.
    for (const auto& [endpoint, listener] : listeners_) {
      pid_t nobody;
      if (listener.rendezvous >= 0) family_.lead(endpoint, Carrier::kShm, nobody);
      if (listener.rdma) family_.lead(endpoint, Carrier::kRdma, nobody);
    }
    pid_t nobody;
    if (policy_fd_.load(std::memory_order_relaxed) >= 0) family_.lead_watching(nobody);
  }
  return family_.reserve();
}

void Agent::before_fork() noexcept {
  mutex_.lock();
  queue_mutex_.lock();
}

void Agent::after_fork_parent() noexcept {
  queue_mutex_.unlock();
  mutex_.unlock();
}

void Agent::after_fork_child() noexcept {
  held_.store(0);
  mutex_.reset_after_fork();
  queue_mutex_.reset_after_fork();
  segment_ = nullptr;  // the parent's
  started_ = false;
  running_.store(false);
  thread_id_.store(0);
  // The parent's epoll instance and eventfd are shared with it: let go of our copies. What hangs on
  // the agent's maps belongs to the parent's thread, may be half changed, and is left alone: the
  // memory is the price of touching nothing.
  sys::close_quietly(epoll_fd_.exchange(-1));
  sys::close_quietly(wake_fd_.exchange(-1));
  new (&queue_) std::vector<Command>;
  new (&attended_) StreamPtr;
  new (&accepted_) std::map<FourTuple, std::weak_ptr<Stream>>;
  new (&streams_) std::map<std::uint64_t, std::weak_ptr<Stream>>;
  new (&watched_) std::map<std::uint64_t, Watched>;
  new (&deadlines_) std::set<std::pair<std::int64_t, std::uint64_t>>;
  new (&promotions_) std::map<PromotionId, Promotion>;
  new (&channels_) std::map<PromotionId, std::uint64_t>;
  new (&unknown_) std::map<PromotionId, Unknown>;
  new (&budget_) ChannelBudget;
  new (&waiting_) std::deque<Waiting>;
  new (&kept_by_peer_) std::map<Endpoint, KeptByPeer>;
  control_ = nullptr;
  policy_fd_.store(-1);
  reload_ns_ = kForever;
  new (&peers_without_) std::map<Endpoint, Absent>;
  new (&answering_) std::map<Endpoint, Answering>;
  // What the parent has closed is the parent's alone.
  for (auto it = listeners_.begin(); it != listeners_.end();) {
    if (it->second.count == 0 && it->second.rendezvous >= 0) {
      sys::close_quietly(it->second.rendezvous);
    }
    it = it->second.count == 0 ? listeners_.erase(it) : std::next(it);
  }
  requests_wait_.store(false);
  some_untold_.store(false);
  tell_old_at_ns_ = kForever;
  found_over_shm_.store(false);
  found_over_rdma_.store(false);
  listen_again_ns_ = kForever;
  listen_pause_ns_ = kListenAgainNs;
  new (&leaders_) std::map<pid_t, int>;
  family_watched_ = false;
  found_at_ = Rendezvous{};
  found_ = Answering{};
  if (lone_rendezvous_ >= 0) sys::close_quietly(std::exchange(lone_rendezvous_, -1));
  new (&shm_) std::unique_ptr<Transport>;
  new (&verbs_) std::unique_ptr<Transport>;
  verbs_again_ns_ = 0;
}

// ---- The agent thread

void* Agent::thread_main(void* self) noexcept {
  static_cast<Agent*>(self)->run();
  return nullptr;
}

bool Agent::runs_here() const noexcept {
  return thread_id_.load(std::memory_order_relaxed) == static_cast<pid_t>(sys::raw(SYS_gettid));
}

void Agent::run() noexcept {
  thread_id_.store(static_cast<pid_t>(sys::raw(SYS_gettid)), std::memory_order_relaxed);
  const int epoll_fd = epoll_fd_.load(std::memory_order_relaxed);
  {
    // A child of a fork answers for the listeners that it inherited.
    listen_again_ns_ = 0;
    listen_again(sys::now_ns());
  }
  watch_operator();
  if (options_.max_channels != nullptr) budget_.set_limit(options_.max_channels());
  epoll_event events[64];
  for (;;) {
    run_commands();
    if (hardly_ever(steps_aside_.load(std::memory_order_relaxed)) && has_ended()) return;
    if (unknown_.empty()) requests_wait_.store(false, std::memory_order_relaxed);
    const std::int64_t deadline = next_deadline();
    int timeout_ms = -1;
    if (deadline != kForever) {
      const std::int64_t left = deadline - sys::now_ns();
      timeout_ms = static_cast<int>(std::clamp<std::int64_t>((left + 999'999) / 1'000'000, 0,
                                                             60'000));
    }
    const int n = sys::epoll_wait(epoll_fd, events, 64, timeout_ms);
    for (int i = 0; i < n; ++i) {
      const std::uint64_t cookie = events[i].data.u64;
      if (cookie == kWakeCookie) {
        sys::drain_eventfd(wake_fd_.load(std::memory_order_relaxed));
      } else if (cookie == kShmCookie) {
        if (shm_ != nullptr) shm_->dispatch();
      } else if (cookie == kVerbsCookie) {
        if (verbs_ != nullptr) verbs_->dispatch();
      } else if (cookie == kControlCookie) {
        obey_operator();
      } else if (cookie == kPolicyCookie) {
        options_.take_policy_events(policy_fd_.load(std::memory_order_relaxed));
        policy_may_be_edited();
      } else if (cookie == kLeaderCookie) {
        forget_leaders();
        listen_pause_ns_ = kListenAgainNs;
        listen_again_ns_ = 0;
        watch_policy();
        policy_may_be_edited();
      } else {
        const auto it = watched_.find(cookie >> 2);
        if (it == watched_.end()) continue;
        const StreamPtr stream = it->second.stream;
        if ((cookie & 3) == kChannelCookie) stream->drain_channel();
        serve(stream);
      }
    }
    expire(sys::now_ns());
  }
}

void Agent::run_commands() noexcept {
  std::vector<Command> commands;
  StreamPtr attended;
  {
    MutexLock lock(queue_mutex_);
    commands.swap(queue_);
    attended.swap(attended_);
  }
  for (Command& command : commands) {
    switch (command.task) {
      case Task::kOffer:
        offer(command.stream);
        break;
      case Task::kListen:
        do_listen(command.endpoint);
        if (command.done != nullptr && command.done->fd >= 0) {
          sys::signal_eventfd(command.done->fd);
        }
        break;
      case Task::kUnlisten:
        do_unlisten(command.endpoint, command.rendezvous);
        break;
      case Task::kStepAside:
        close_what_it_can();
        break;
    }
  }
  if (tell_old_at_ns_ == kForever && some_untold_.load(std::memory_order_relaxed)) {
    tell_old_at_ns_ = sys::now_ns() + kTellOldNs;
  }
  while (attended != nullptr) {
    const StreamPtr stream = std::move(attended);
    attended = std::move(stream->next_queued);
    stream->attention_given();
    if (stream->wants_promotion.exchange(false, std::memory_order_acq_rel)) start(stream);
    if (stream->read_since_asked()) offer(stream);
    serve(stream);
  }
}

// Does what can be done for a stream, then arranges to be woken for what cannot be done yet.
void Agent::serve(const StreamPtr& stream) noexcept {
  try {
    Watched& watched = watched_[stream->id()];
    if (watched.stream == nullptr) {
      watched.stream = stream;
      watched.deadline_ns = kForever;
    }
    for (;;) {
      stream->service();
      log_move(watched);
      drop_request(*stream);
      note_kept_by_peer(stream);
      if (!unknown_.empty() && stream->role() == StreamRole::kAccept &&
          stream->state() == State::kOnTcp) {
        offer(stream);  // it was on its way back when it was asked for
      }
      const State state = stream->state();
      if (!stream->has_channel() && state != State::kReset && budget_.remove(stream->id())) {
        room_is_made();
      }
      const StreamInterest want = stream->interest();
      if (want.done) {
        if (stream->state() == State::kClosed) forget_closed(stream->id());
        forget(stream->id());
        return;
      }
      std::uint32_t events = 0;
      if (want.tcp_in) events |= EPOLLIN | EPOLLRDHUP | EPOLLET;
      if (want.tcp_out) events |= EPOLLOUT | EPOLLET;
      if (events != watched.tcp_events || stream->fd() != watched.tcp_fd) {
        watched.tcp_events = events;
        watched.tcp_fd = stream->fd();
        stream->watch_tcp(epoll_fd_.load(std::memory_order_relaxed),
                          (stream->id() << 2) | kTcpCookie, events);
      }
      set_deadline(watched, want.deadline_ns);
      watch_channel(watched, want.channel);
      if (!want.channel || stream->arm_channel()) return;
    }
  } catch (const std::bad_alloc&) {
  }
}

// A request that led to something, or will not. Null if it was cancelled.
std::optional<Agent::Promotion> Agent::take_promotion(PromotionId id) noexcept {
  const auto it = promotions_.find(id);
  if (it == promotions_.end()) return std::nullopt;
  std::optional<Promotion> taken(std::move(it->second));
  promotions_.erase(it);
  taken->stream->request = 0;
  return taken;
}

// What a stream has asked for and does not want any more: its program has closed it, or it shall
// stay on TCP. An answer that came all the same, to the next request perhaps, would be taken for
// that one's.
void Agent::drop_request(Stream& stream) noexcept {
  if (stream.request == 0 || stream.state() == State::kConnecting) return;
  const PromotionId id = stream.request;
  const std::optional<Promotion> promotion = take_promotion(id);
  if (promotion) promotion->transport->cancel(id);
  const auto kept = kept_by_peer_.find(stream.tuple().remote);
  if (kept != kept_by_peer_.end() && kept->second.envoy == stream.id()) {
    kept->second.envoy = 0;
    kept->second.next_ns = sys::now_ns();
  }
}

void Agent::watch_channel(Watched& watched, bool wanted) noexcept {
  const int epoll_fd = epoll_fd_.load(std::memory_order_relaxed);
  const int fd = wanted ? watched.stream->channel_fd() : -1;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = (watched.stream->id() << 2) | kChannelCookie;
  watched.stream->agent_sleeps_on_channel(wanted);
  if (fd < 0) {
    // The number may have been closed with its channel, and even reused, but only by an object of
    // the library's that registers itself again below.
    if (watched.channel_fd >= 0 && watched.stream->channel_fd() == watched.channel_fd) {
      sys::epoll_ctl(epoll_fd, EPOLL_CTL_DEL, watched.channel_fd, &event);
    }
  } else if (fd != watched.channel_fd) {
    if (sys::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0 && errno == EEXIST) {
      sys::epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &event);
    }
  }
  watched.channel_fd = fd;
}

void Agent::set_deadline(Watched& watched, std::int64_t deadline_ns) noexcept {
  if (watched.deadline_ns == deadline_ns) return;
  const std::uint64_t id = watched.stream->id();
  if (watched.deadline_ns != kForever) deadlines_.erase({watched.deadline_ns, id});
  watched.deadline_ns = deadline_ns;
  if (deadline_ns == kForever) return;
  try {
    deadlines_.insert({deadline_ns, id});
  } catch (const std::bad_alloc&) {
    watched.deadline_ns = kForever;
  }
}

void Agent::forget(std::uint64_t id) noexcept {
  const auto it = watched_.find(id);
  if (it == watched_.end()) return;
  Watched& watched = it->second;
  set_deadline(watched, kForever);
  watch_channel(watched, false);
  if (watched.tcp_events != 0) {
    watched.stream->watch_tcp(epoll_fd_.load(std::memory_order_relaxed), 0, 0);
  }
  if (watched.promotion != 0) channels_.erase(watched.promotion);
  watched_.erase(it);
}

std::int64_t Agent::next_deadline() noexcept {
  std::int64_t next = deadlines_.empty() ? kForever : deadlines_.begin()->first;
  for (const auto& [id, unknown] : unknown_) {
    next = std::min({next, unknown.deadline_ns, unknown.look_ns});
  }
  if (!waiting_.empty()) next = std::min(next, waiting_.front().deadline_ns);
  return std::min({next, listen_again_ns_, next_operator_deadline(), budget_.deadline_ns(),
                   tell_old_at_ns_});
}

void Agent::expire(std::int64_t now_ns) noexcept {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_ns) {
    const auto it = watched_.find(deadlines_.begin()->second);
    if (it == watched_.end()) {
      deadlines_.erase(deadlines_.begin());
      continue;
    }
    const StreamPtr stream = it->second.stream;
    set_deadline(it->second, kForever);
    stream->deadline_passed();
    serve(stream);
  }
  tell_old(now_ns);
  reload_policy(now_ns);
  budget_.expire(now_ns);
  stop_waiting_for_room(now_ns);
  ask_for_kept(now_ns);
  look_again(now_ns);
  listen_again(now_ns);
}

}  // namespace ringroad
