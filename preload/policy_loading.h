// Loads the policy as the process starts, takes up its edits, and tells the log and the statistics of both.
#pragma once

namespace ringroad::preload::policy_loading {

// What the start has found.
enum class Loaded {
  kNone,      // it is refused: every connection stays on TCP
  kTcpOnly,   // no rule lets anything off the kernel
  kLetsOff,
};
// Once. `named`: the value of RINGROAD_POLICY, which is kept. May throw std::bad_alloc.
Loaded load(const char* named);

// AgentHost::reload_policy: on the agent thread, as all that concerns edits.
bool reload(int watch_fd) noexcept;
// Since the process started: a listener that the policy did not know of may be one now.
bool was_edited() noexcept;

}  // namespace ringroad::preload::policy_loading
