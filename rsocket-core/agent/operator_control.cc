#include "rsocket-core/agent/operator_control.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <optional>

#include "rsocket-core/base/sys.h"

namespace ringroad {

// ---- Any thread

// It looks again after each change, as apply_to_all() may do the same now: the last word is about what holds.
void OperatorControl::settle(AgentStream& stream) noexcept {
  for (Reason why; (why = why_kept(stream)) != stream.operator_hold();) {
    if (why != Reason::kNone) {
      stream.keep_on_tcp(why);
    } else {
      stream.let_off_tcp(false);
    }
  }
}

void OperatorControl::report_to(stats::Segment* segment) noexcept {
  segment_ = segment;
  publish_mode();
}

void OperatorControl::publish_mode() noexcept {
  if (segment_ == nullptr) return;
  segment_->header().operator_mode.store(static_cast<std::uint32_t>(mode()));
}

Reason OperatorControl::why_kept(const AgentStream& stream) noexcept {
  if (policy_edited_.load() && !host_.allows(stream.role(), stream.tuple())) return Reason::kPolicy;
  return mode_.load() == control::Mode::kTcp ? Reason::kOperator : Reason::kNone;
}

// ---- Agent thread

void OperatorControl::begin() noexcept {
  if (segment_ != nullptr) {
    control_ = new (std::nothrow) control::ControlSocket;
    bool made = false;
    // The process may be ending already.
    const bool wanted = segment_->make_beside([&]() noexcept {
      made = control_ != nullptr && control_->open(segment_->path());
      if (made) std::strcpy(segment_->header().control_suffix, control_->suffix());
    });
    if (wanted && !(made && loop_.watch(control_->fd(), AgentLoop::kControlCookie, EPOLLIN))) {
      host_.log("ringroad set cannot reach this process: its socket cannot be made");
    }
    publish_mode();
  }
  watch_policy();
  // The policy was read when the program made its first call, or by the parent of a child. Nobody has told of
  // edits between then and now.
  reload_ns_ = 0;
}

void OperatorControl::watch_policy() noexcept {
  if (watches_policy()) return;
  pid_t watcher;
  if (group_.exists() && !group_.lead_watching(watcher)) {
    listeners_.watch_leader(watcher);
    // It may have ended before it was watched.
    if (!group_.lead_watching(watcher)) return;
  }
  const int fd = host_.watch_policy();
  policy_fd_.store(fd, std::memory_order_relaxed);
  if (!loop_.watch(fd, AgentLoop::kPolicyCookie, EPOLLIN)) {
    host_.log("the policy cannot be watched: edits are not taken up");
  }
}

void OperatorControl::policy_may_be_edited() noexcept {
  reload_ns_ = std::min(reload_ns_, sys::now_ns() + kPolicySettlesNs);
}

void OperatorControl::policy_has_events() noexcept {
  host_.take_policy_events(policy_fd_.load(std::memory_order_relaxed));
  policy_may_be_edited();
}

void OperatorControl::group_has_news() noexcept {
  watch_policy();
  policy_may_be_edited();
}

void OperatorControl::obey() noexcept {
  while (const std::optional<control::Request> request = control_->receive()) {
    const auto mode = static_cast<control::Mode>(request->mode);
    mode_.store(mode);
    char line[64];
    std::snprintf(line, sizeof line, "the operator asks for %s", control::mode_name(mode));
    host_.log(line);
    apply_to_all();
    segment_->header().operator_mode.store(request->mode, std::memory_order_relaxed);
    segment_->header().operator_serial.store(request->serial, std::memory_order_release);
  }
}

void OperatorControl::expire(std::int64_t now_ns) noexcept {
  if (reload_ns_ > now_ns) return;
  reload_ns_ = kForever;
  const int fd = policy_fd_.load(std::memory_order_relaxed);
  if (fd >= 0 && group_.exists()) group_.tell();
  if (!host_.reload_policy(fd)) return;
  policy_edited_.store(true);
  broker_.set_limit(host_.max_channels());
  apply_to_all();
}

void OperatorControl::apply_to_all() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // Agent::note_deferred()
  host_.materialise(AgentHost::Deferred::kAll, {});
  streams_.each([this](const AgentStreamPtr& stream) noexcept {
    apply_to(stream);
    return true;
  });
  broker_.look_at_once();  // a request for a stream that may be promoted now has waited long enough
}

void OperatorControl::apply_to(const AgentStreamPtr& stream) noexcept {
  const Reason why = why_kept(*stream);
  const bool at_once = mode_.load() == control::Mode::kRdma;
  if (why != Reason::kNone) {
    stream->keep_on_tcp(why);
  } else if (at_once || stream->operator_hold() != Reason::kNone) {
    if (stream->let_off_tcp(at_once)) broker_.start(stream);
  }
}

void OperatorControl::step_aside() noexcept {
  reload_ns_ = kForever;
  if (const int fd = policy_fd_.exchange(-1); fd >= 0) sys::close_quietly(fd);
  if (control_ != nullptr) control_->close();
}

void OperatorControl::after_fork_child() noexcept {
  segment_ = nullptr;
  control_ = nullptr;
  policy_fd_.store(-1);
  reload_ns_ = kForever;
}

}  // namespace ringroad
