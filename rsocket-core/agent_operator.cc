// The agent's part in what an operator does to a running process: `ringroad set`, edits of the
// policy, and the same done to the process at the other end.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "rsocket-core/agent.h"
#include "rsocket-core/sys.h"

namespace ringroad {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

}  // namespace

bool Agent::watch(int fd, Cookie cookie) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = cookie;
  return fd >= 0 &&
         sys::epoll_ctl(epoll_fd_.load(std::memory_order_relaxed), EPOLL_CTL_ADD, fd, &event) == 0;
}

void Agent::note(const char* line) noexcept {
  if (options_.log != nullptr) options_.log(line);
}

// Also for the program that this process becomes (stats.h).
void Agent::publish_mode() noexcept {
  if (segment_ == nullptr) return;
  segment_->header().operator_mode.store(
      static_cast<std::uint32_t>(mode_.load(std::memory_order_relaxed)));
}

void Agent::watch_operator() noexcept {
  if (segment_ != nullptr) {
    control_ = new (std::nothrow) control::Socket;
    bool made = false;
    // The process may be ending already.
    const bool wanted = segment_->make_beside([&]() noexcept {
      made = control_ != nullptr && control_->open(segment_->path());
      if (made) std::strcpy(segment_->header().control_suffix, control_->suffix());
    });
    if (wanted && !(made && watch(control_->fd(), kControlCookie))) {
      note("ringroad set cannot reach this process: its socket cannot be made");
    }
    publish_mode();
  }
  watch_policy();
  // The policy was read when the program made its first call, or by the parent of a child: what has
  // been edited between then and now, nobody has been told of.
  if (options_.reload_policy != nullptr) reload_ns_ = 0;
}

// One process of a family does, and tells the others: a user has few inotify instances, and other
// programs of his need them, too (inotify(7), max_user_instances).
void Agent::watch_policy() noexcept {
  if (options_.watch_policy == nullptr || policy_fd_.load(std::memory_order_relaxed) >= 0) return;
  pid_t watcher;
  if (family_.exists() && !family_.lead_watching(watcher)) {
    watch_leader(watcher);
    // It may have ended before it was watched.
    if (!family_.lead_watching(watcher)) return;
  }
  const int fd = options_.watch_policy();
  policy_fd_.store(fd, std::memory_order_relaxed);
  if (!watch(fd, kPolicyCookie)) note("the policy cannot be watched: edits are not taken up");
}

void Agent::policy_may_be_edited() noexcept {
  if (options_.reload_policy == nullptr) return;
  reload_ns_ = std::min(reload_ns_, sys::now_ns() + kPolicySettlesNs);
}

// ---- What this process' operator asks for

void Agent::obey_operator() noexcept {
  while (const std::optional<control::Request> request = control_->receive()) {
    const auto mode = static_cast<control::Mode>(request->mode);
    mode_.store(mode);
    char line[64];
    std::snprintf(line, sizeof line, "the operator asks for %s", control::mode_name(mode));
    note(line);
    apply_to_all();
    segment_->header().operator_mode.store(request->mode, std::memory_order_relaxed);
    segment_->header().operator_serial.store(request->serial, std::memory_order_release);
  }
}

void Agent::reload_policy(std::int64_t now_ns) noexcept {
  if (reload_ns_ > now_ns) return;
  reload_ns_ = kForever;
  const int fd = policy_fd_.load(std::memory_order_relaxed);
  if (fd >= 0 && family_.exists()) family_.tell();
  if (!options_.reload_policy(fd)) return;
  policy_edited_.store(true);
  if (options_.max_channels != nullptr) budget_.set_limit(options_.max_channels());
  apply_to_all();
}

// A stream that is made meanwhile is seen here, or sees the change (make_stream()).
void Agent::apply_to_all() noexcept {
  tell(AgentOptions::Untold::kAll);
  each_stream([this](const StreamPtr& stream) noexcept {
    apply_to(stream);
    return true;
  });
  // Who asked for one that may be promoted now has waited long enough.
  for (auto& [id, unknown] : unknown_) unknown.look_ns = 0;
}

Reason Agent::why_kept(const Stream& stream) noexcept {
  if (policy_edited_.load() && options_.allows != nullptr &&
      !options_.allows(stream.role(), stream.tuple())) {
    return Reason::kPolicy;
  }
  return mode_.load() == control::Mode::kTcp ? Reason::kOperator : Reason::kNone;
}

void Agent::apply_to(const StreamPtr& stream) noexcept {
  const Reason why = why_kept(*stream);
  const bool at_once = mode_.load() == control::Mode::kRdma;
  if (why != Reason::kNone) {
    stream->keep_on_tcp(why);
  } else if (at_once || stream->kept() != Reason::kNone) {
    if (stream->let_off_tcp(at_once)) start(stream);
  }
}

// ---- What the other end's operator asks for
namespace {

// What this process' operator keeps is not asked for, whatever the other end's does.
bool may_ask_now(Stream& stream) noexcept {
  return stream.kept() == Reason::kNone && stream.let_off_tcp(true);
}

}  // namespace

void Agent::note_kept_by_peer(const StreamPtr& stream) noexcept {
  if (!stream->take_peer_keeps()) return;
  const std::int64_t now = sys::now_ns();
  try {
    KeptByPeer& kept = kept_by_peer_[stream->tuple().remote];
    if (kept.streams.size() >= kept.tidy_at) {
      std::erase_if(kept.streams, [](const std::weak_ptr<Stream>& known) { return known.expired(); });
      kept.tidy_at = std::max(2 * kept.streams.size(), kTidyKept);
    }
    kept.streams.push_back(stream);
    if (kept.envoy == stream->id()) {
      kept.envoy = 0;
      kept.next_ns = now - kept.asked_ns < kKeptRequestNs / 2 ? now + kKeptPauseNs : now;
    } else if (kept.streams.size() == 1 && kept.envoy == 0) {
      kept.next_ns = now + kReturnPauseNs;
    }
  } catch (const std::bad_alloc&) {
  }
}

std::int64_t Agent::next_operator_deadline() const noexcept {
  std::int64_t next = reload_ns_;
  for (const auto& [peer, kept] : kept_by_peer_) {
    next = std::min(next, kept.envoy == 0 ? kept.next_ns : kept.asked_ns + kEnvoyNs);
  }
  return next;
}

void Agent::ask_for_kept(std::int64_t now_ns) noexcept {
  std::vector<StreamPtr> envoys;
  for (auto it = kept_by_peer_.begin(); it != kept_by_peer_.end();) {
    KeptByPeer& kept = it->second;
    const std::int64_t due =
        kept.envoy == 0 ? kept.next_ns : kept.asked_ns + kEnvoyNs;
    if (due > now_ns) {
      ++it;
      continue;
    }
    kept.envoy = 0;
    StreamPtr envoy;
    while (envoy == nullptr && !kept.streams.empty()) {
      envoy = kept.streams.front().lock();
      kept.streams.pop_front();
      if (envoy != nullptr && !may_ask_now(*envoy)) envoy.reset();
    }
    if (envoy == nullptr) {
      it = kept_by_peer_.erase(it);
      continue;
    }
    kept.envoy = envoy->id();
    kept.asked_ns = now_ns;
    try {
      envoys.push_back(std::move(envoy));
    } catch (const std::bad_alloc&) {
    }
    ++it;
  }
  // What this leads to may change the map.
  for (const StreamPtr& envoy : envoys) start(envoy);
}

// The peer has an answer other than that it keeps them.
void Agent::peer_lets_off(const Endpoint& peer) noexcept {
  const auto it = kept_by_peer_.find(peer);
  if (it == kept_by_peer_.end()) return;
  const std::deque<std::weak_ptr<Stream>> streams = std::move(it->second.streams);
  kept_by_peer_.erase(it);
  for (const std::weak_ptr<Stream>& weak : streams) {
    const StreamPtr stream = weak.lock();
    if (stream != nullptr && may_ask_now(*stream)) start(stream);
  }
}

}  // namespace ringroad
