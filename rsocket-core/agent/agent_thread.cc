// The agent thread: its loop, its queue, and what it watches.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "rsocket-core/agent/agent.h"
#include "rsocket-core/agent/decision_log.h"
#include "rsocket-core/base/sys.h"

namespace ringroad {

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
  listeners_.begin();
  operator_.begin();
  broker_.set_limit(host_.max_channels());
  epoll_event events[64];
  for (;;) {
    run_commands();
    if (hardly_ever(steps_aside_.load(std::memory_order_relaxed)) && has_ended()) return;
    if (!broker_.has_pending_requests()) streams_.set_requests_wait(false);
    const std::int64_t deadline = next_deadline();
    int timeout_ms = -1;
    if (deadline != kForever) {
      const std::int64_t left = deadline - sys::now_ns();
      timeout_ms = static_cast<int>(std::clamp<std::int64_t>((left + 999'999) / 1'000'000, 0,
                                                             60'000));
    }
    const int n = sys::epoll_wait(epoll_fd, events, 64, timeout_ms);
    for (int i = 0; i < n; ++i) dispatch(events[i].data.u64);
    expire(sys::now_ns());
  }
}

void Agent::dispatch(std::uint64_t cookie) noexcept {
  switch (cookie) {
    case kWakeCookie:
      sys::drain_eventfd(wake_fd_.load(std::memory_order_relaxed));
      return;
    case kShmCookie:
      transports_.dispatch_shm();
      return;
    case kVerbsCookie:
      transports_.dispatch_verbs();
      return;
    case kControlCookie:
      operator_.obey();
      return;
    case kPolicyCookie:
      operator_.policy_has_events();
      return;
    case kLeaderCookie:
      listeners_.leader_has_stopped();
      operator_.group_has_news();
      return;
    default:
      break;
  }
  const auto it = watched_.find(cookie >> 2);
  if (it == watched_.end()) return;
  const AgentStreamPtr stream = it->second.stream;
  if ((cookie & 3) == kChannelCookie) stream->take_wake_up();
  serve(stream);
}

void Agent::run_commands() noexcept {
  std::vector<Command> commands;
  AgentStreamPtr attended;
  {
    MutexLock lock(queue_mutex_);
    commands.swap(queue_);
    attended.swap(attended_);
  }
  for (Command& command : commands) {
    switch (command.task) {
      case Task::kOffer:
        broker_.match_pending_requests(command.stream);
        break;
      case Task::kListen:
        listeners_.answer(command.endpoint);
        if (command.done != nullptr && command.done->fd >= 0) {
          sys::signal_eventfd(command.done->fd);
        }
        break;
      case Task::kUnlisten:
        listeners_.stop_answering(command.endpoint, command.rendezvous);
        break;
      case Task::kStepAside:
        close_what_it_can();
        break;
    }
  }
  if (materialise_old_at_ns_ == kForever && some_deferred_.load(std::memory_order_relaxed)) {
    materialise_old_at_ns_ = sys::now_ns() + kMaterialiseOldNs;
  }
  while (attended != nullptr) {
    const AgentStreamPtr stream = std::move(attended);
    attended = std::move(stream->next_queued);
    stream->attention_given();
    if (stream->wants_promotion.exchange(false, std::memory_order_acq_rel)) {
      broker_.start(stream);
    }
    if (stream->read_since_asked()) broker_.match_pending_requests(stream);
    serve(stream);
  }
}

void Agent::materialise_old(std::int64_t now_ns) noexcept {
  if (materialise_old_at_ns_ > now_ns) return;
  materialise_old_at_ns_ = kForever;
  some_deferred_.store(false);  // a thread that defers one later says so again
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (host_.materialise(AgentHost::Deferred::kOld, {})) some_deferred_.store(true);
}

// ---- What is watched for a stream

void Agent::serve(const AgentStreamPtr& stream) noexcept {
  try {
    Watched& watched = watched_[stream->id()];
    if (watched.stream == nullptr) {
      watched.stream = stream;
      watched.deadline_ns = kForever;
    }
    for (;;) {
      stream->service();
      log_move(watched);
      broker_.after_service(stream);
      const StreamInterest want = stream->interest();
      if (want.done) {
        if (stream->state() == State::kClosed) streams_.forget(stream->id());
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

void Agent::watch_channel(Watched& watched, bool wanted) noexcept {
  const int epoll_fd = epoll_fd_.load(std::memory_order_relaxed);
  const int fd = wanted ? watched.stream->channel_fd() : -1;
  epoll_event event{};
  event.events = watched.stream->channel_events() | EPOLLET;  // take_wake_up() may leave it readable
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

void Agent::log_move(Watched& watched) noexcept {
  const AgentStream& stream = *watched.stream;
  const State state = stream.state();
  if (state == State::kOnChannel && !watched.told_of_channel) {
    watched.told_of_channel = true;
    log_decision(host_, stream, "goes over its channel", Reason::kNone, Reason::kNone);
  } else if (state == State::kOnTcp && watched.told_of_channel) {
    watched.told_of_channel = false;
    log_decision(host_, stream, "is back on TCP", stream.reason(), stream.peer_reason());
  } else if (state == State::kReset && !watched.told_of_reset) {
    watched.told_of_reset = true;
    log_decision(host_, stream, "is reset", stream.reason(), stream.peer_reason());
  }
}

void Agent::on_channel_event(Transport&, PromotionId id) noexcept {
  const auto channel = channels_.find(id);
  if (channel == channels_.end()) return;
  const auto it = watched_.find(channel->second);
  if (it == watched_.end()) return;
  const AgentStreamPtr stream = it->second.stream;
  stream->take_wake_up();
  serve(stream);
}

// ---- AgentLoop

bool Agent::watch(int fd, Cookie cookie, std::uint32_t events) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = cookie;
  return fd >= 0 &&
         sys::epoll_ctl(epoll_fd_.load(std::memory_order_relaxed), EPOLL_CTL_ADD, fd, &event) == 0;
}

void Agent::channel_is_up(const AgentStreamPtr& stream, PromotionId id) noexcept {
  serve(stream);
  try {
    const auto watched = watched_.find(stream->id());
    if (watched != watched_.end()) {
      if (watched->second.promotion != 0) channels_.erase(watched->second.promotion);
      watched->second.promotion = id;
      channels_[id] = stream->id();
    }
  } catch (const std::bad_alloc&) {
  }
}

void Agent::stop_answering_soon(const Endpoint& local, int rendezvous) noexcept {
  post({Task::kUnlisten, nullptr, local, rendezvous, {}});
}

// ---- Deadlines

std::int64_t Agent::next_deadline() noexcept {
  const std::int64_t streams = deadlines_.empty() ? kForever : deadlines_.begin()->first;
  return std::min({streams, materialise_old_at_ns_, operator_.next_deadline(), broker_.next_deadline(),
                   listeners_.next_deadline()});
}

void Agent::expire(std::int64_t now_ns) noexcept {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_ns) {
    const auto it = watched_.find(deadlines_.begin()->second);
    if (it == watched_.end()) {
      deadlines_.erase(deadlines_.begin());
      continue;
    }
    const AgentStreamPtr stream = it->second.stream;
    set_deadline(it->second, kForever);
    stream->deadline_passed();
    serve(stream);
  }
  materialise_old(now_ns);
  operator_.expire(now_ns);
  broker_.expire(now_ns);
  listeners_.expire(now_ns);
}

}  // namespace ringroad
