#include "rsocket-core/agent/agent.h"

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstddef>
#include <new>

#include "rsocket-core/base/above_limit.h"
#include "rsocket-core/base/signals.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/base/threads.h"
#include "rsocket-core/stream/unmanaged_waiters.h"
#include "rsocket-core/stream/waiter.h"

namespace ringroad {
namespace {

// A program that may have fewer open is to have them all.
constexpr rlim_t kFewestDescriptors = 64;
constexpr std::size_t kStackBytes = 512 * 1024;

}  // namespace

Agent::Agent(AgentHost& host, control::Mode mode) noexcept
    : host_(host),
      transports_(host, *this, *this),
      listeners_(host, *this, process_group_, streams_, transports_),
      broker_(host, *this, process_group_, streams_, listeners_, transports_),
      operator_(host, *this, process_group_, streams_, listeners_, broker_, mode) {}

// ---- The thread and its queue

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
  if (segment_ == nullptr) {
    segment_ = host_.segment();
    broker_.report_to(segment_);
    operator_.report_to(segment_);
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
    pthread_t thread;
    running_.store(true, std::memory_order_release);
    unmanaged_waiters::prepare();
    ok = start_thread(thread, Ends::kAlone, kStackBytes, thread_main, this);
    if (ok) pthread_setname_np(thread, "ringroad");
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

// With the lock: the agent thread may close the descriptor (agent_aside.cc), and the number be the
// program's then.
void Agent::wake_thread() noexcept {
  MutexLock lock(queue_mutex_);
  const int fd = wake_fd_.load(std::memory_order_relaxed);
  if (fd >= 0) sys::signal_eventfd(fd);
}

// ---- Streams

StreamPtr Agent::open_stream(int fd, Role role, const FourTuple& tuple,
                             const StreamConfig& config, bool nonblocking,
                             const DeferredUse& early) noexcept {
  const std::uint64_t share =
      role == Role::kAccept && process_group_.joined() ? process_group_.enter(tuple) : 0;
  return make_stream(fd, role, tuple, config, nonblocking, false, share, early);
}

StreamPtr Agent::inherit_stream(int fd, Role role, const FourTuple& tuple,
                                const StreamConfig& config, std::uint64_t share) noexcept {
  const int flags = sys::fcntl(fd, F_GETFL);
  return make_stream(fd, role, tuple, config, (flags & O_NONBLOCK) != 0, true, share, {});
}

AgentStreamPtr Agent::make_stream(int fd, Role role, const FourTuple& tuple,
                             const StreamConfig& config, bool nonblocking, bool inherited,
                             std::uint64_t share, const DeferredUse& early) noexcept {
  static std::atomic<std::uint64_t> next_id{1};
  const int saved = errno;
  AgentStreamPtr stream;
  bool expected = false;
  if (ensure_thread()) {
    try {
      const auto make = [&](const StreamConfig& own) {
        return std::make_shared<AgentStream>(this, segment_, next_id.fetch_add(1), fd, role, tuple, own,
                                        nonblocking, early);
      };
      // A configuration is large for a small stack, and a copy is hardly ever needed.
      const auto make_at_once = [&]() __attribute__((noinline)) {
        StreamConfig own = config;
        own.promote_messages = 0;
        return make(own);
      };
      stream = operator_.mode() == control::Mode::kRdma ? make_at_once() : make(config);
      if (inherited) {
        stream->begin_shared(share);
      } else {
        stream->set_share(share);
      }
      expected = streams_.enter(stream);
      operator_.settle(*stream);
    } catch (const std::bad_alloc&) {
      stream.reset();
    }
  }
  if (stream == nullptr && share != 0) {
    // The kernel's, where the library does not look: no other process may count on being alone.
    process_group_.keep(share);
    if (!inherited) process_group_.release(share);
  }
  // A wake-up of the agent thread costs more than all the rest of this.
  if (stream != nullptr && (listeners_.needs_to_be_found(*stream) || expected)) {
    post({Task::kOffer, stream, {}, -1, {}});
  }
  errno = saved;
  return stream;
}

// The agent thread says that it looks, and then looks (AgentHost::materialise()). A thread that defers a
// connection enters it in its table, and then asks here. So one of the two sees the other.
bool Agent::note_deferred(Role role) noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (role == Role::kAccept && streams_.requests_wait()) return false;
  if (operator_.mode() != control::Mode::kAuto) return false;
  if (!some_deferred_.load(std::memory_order_relaxed) && !some_deferred_.exchange(true)) {
    wake_thread();
  }
  return true;
}

void Agent::stream_closed(Stream& stream, bool over) noexcept {
  if (const std::uint64_t share = stream.take_share(); share != 0) process_group_.release(share);
  streams_.leave(stream, over);
  if (stream.role() == Role::kAccept) listeners_.accepted_is_closed(stream.tuple().local);
}

void Agent::attend(Stream& any) noexcept {
  AgentStream& stream = AgentStream::of(any);
  if (!stream.claim_attention()) return;
  if (!running_.load(std::memory_order_acquire)) {
    stream.attention_given();
    return;
  }
  const int saved = errno;
  {
    MutexLock lock(queue_mutex_);
    AgentStreamPtr& end = attended_ == nullptr ? attended_ : last_attended_->next_queued;
    end = AgentStream::of(stream.shared_from_this());
    last_attended_ = &stream;
  }
  wake_thread();
  errno = saved;
}

void Agent::start_promotion(Stream& stream) noexcept {
  AgentStream::of(stream).wants_promotion.store(true, std::memory_order_release);
  attend(stream);
}

void Agent::unwatch(Stream&, int old_fd) noexcept {
  epoll_event unused{};
  MutexLock lock(queue_mutex_);
  const int epoll_fd = epoll_fd_.load(std::memory_order_relaxed);
  if (epoll_fd >= 0) sys::epoll_ctl(epoll_fd, EPOLL_CTL_DEL, old_fd, &unused);
}

// ---- Listeners

void Agent::listen(const Endpoint& local, bool via_shm, bool via_rdma, bool waits,
                   const ListenerFacts& facts) noexcept {
  const int saved = errno;
  if (!listeners_.add(local, via_shm, via_rdma, facts)) return;
  if (ensure_thread()) {
    std::shared_ptr<Done> done;
    try {
      if (waits) {
        done = std::make_shared<Done>();
        done->fd = sys::open_high([&] { return sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
      }
    } catch (const std::bad_alloc&) {
    }
    post({Task::kListen, nullptr, local, -1, done});
    const std::int64_t deadline = sys::now_ns() + kListenWaitNs;
    for (std::int64_t left = kListenWaitNs; done != nullptr && done->fd >= 0 && left > 0;
         left = deadline - sys::now_ns()) {
      pollfd fds{done->fd, POLLIN, 0};
      timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
      if (sys::ppoll(&fds, 1, &timeout, nullptr) > 0) break;
    }
  }
  errno = saved;
}

Agent::Done::~Done() {
  if (fd >= 0) sys::close_quietly(fd);
}

void Agent::unlisten(const Endpoint& local) noexcept {
  const int saved = errno;
  int rendezvous = -1;
  bool was_answered = false;
  {
    MutexLock lock(mutex_);
    was_answered = listeners_.remove(local, started_, rendezvous);
  }
  if (was_answered) post({Task::kUnlisten, nullptr, local, rendezvous, {}});
  errno = saved;
}

// ---- The program needs the kernel

void Agent::pin_unshareable() noexcept {
  streams_.each([](const AgentStreamPtr& stream) noexcept {
    const State state = stream->state();
    const bool on_tcp = state == State::kOnTcp || state == State::kConnecting;
    if (on_tcp && !stream->can_be_shared()) stream->demote_for_good(Reason::kFork, 0);
    return true;
  });
}

void Agent::pin_all(Reason reason) noexcept {
  streams_.each([&](const AgentStreamPtr& stream) noexcept {
    stream->demote_for_good(reason, 0);
    return true;
  });
}

void Agent::leave_all(Reason reason, std::int64_t timeout_ns) noexcept {
  // None is promoted while we wait for another. What is on TCP may be promoted after a fork.
  const bool may_go_on = reason == Reason::kFork || reason == Reason::kExec;
  if (may_go_on) broker_.hold();
  if (!running_.load(std::memory_order_acquire)) return;
  const std::int64_t deadline = sys::now_ns() + timeout_ns;
  streams_.each([&](const AgentStreamPtr& stream) noexcept {
    const State state = stream->state();
    if (stream->closed_by_program()) {
      if (reason != Reason::kFork) stream->leave_closed(reason);  // else it ends by itself
      return true;
    }
    if (!may_go_on) {
      stream->demote_for_good(reason, 0);
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
  streams_.each([&](const AgentStreamPtr& stream) noexcept {
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
        if (sys::ppoll(&fds, 1, &timeout, nullptr) > 0) clear_wake(waiter.wake_fd);
      }
      stream->waiters().remove(waiter);
    }
    return true;
  });
}

}  // namespace ringroad
