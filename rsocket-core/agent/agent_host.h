// What the agent asks of the layer above it. The preload layer implements it (preload/agent_host.h); a test
// overrides what it needs. The base class answers for a process without verbs, statistics, log and policy.
//
// Thread rule: each call says on which thread it comes. "Any thread" may be the agent thread.
// Locks: none of the agent's or of a stream's is held, unless a call says so.
// Errors: no call throws. A call that cannot do its work returns the value that its comment names.
// Lifetime: the object is there before the agent and is never destroyed. It may be constinit: the class
// has no state and no destructor that runs.
#pragma once

#include <cstdint>

#include "rsocket-core/agent/channel_budget.h"
#include "rsocket-core/channel/transport.h"
#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/protocol/reason.h"
#include "rsocket-core/stats/stats.h"
#include "rsocket-core/stream/stream.h"

namespace ringroad {

class AgentHost {
 public:
  AgentHost(const AgentHost&) = delete;
  AgentHost& operator=(const AgentHost&) = delete;

  // Loads the verbs transport. Null: `why` says why not. Agent thread; called again after a pause while what
  // keeps it from loading may end.
  virtual Transport* load_verbs(TransportEvents& /*events*/, Reason& why) noexcept {
    why = Reason::kNoVerbsLibrary;
    return nullptr;
  }

  // The process' statistics, which the caller does not own. Null: they cannot be kept. Called once when the
  // process needs the agent's thread, and once in each child of a fork that needs it: a child that becomes a
  // helper program leaves no file. Any thread, with the lock of the agent's start held.
  virtual stats::Segment* segment() noexcept { return nullptr; }

  // ---- The log. Any thread.
  // Writes one line about a decision.
  virtual void log(const char* /*line*/) noexcept {}
  // Whether log() would write a line now. The agent asks before it formats a line about a stream.
  virtual bool wants_log() noexcept { return false; }

  // ---- The policy
  // A descriptor that is readable when the policy may have been edited, until take_policy_events(). The
  // caller owns it. -1: edits cannot be watched. Agent thread.
  virtual int watch_policy() noexcept { return -1; }
  // Takes what makes `watch_fd` readable. Agent thread.
  virtual void take_policy_events(int /*watch_fd*/) noexcept {}
  // Reads the policy again. True: another one holds now. False: the same one does, also after an error.
  // `watch_fd`: from watch_policy(), or -1. Agent thread.
  virtual bool reload_policy(int /*watch_fd*/) noexcept { return false; }
  // Whether the policy that holds lets the connection off TCP. Any thread.
  virtual bool allows(Role /*role*/, const FourTuple& /*tuple*/) noexcept { return true; }
  // The key that the policy names for an accepted connection. Agent thread.
  virtual SharedKey key_for(const FourTuple& /*accepted*/) noexcept { return {}; }
  // How many channels the process may have, by the policy that holds. Agent thread.
  virtual unsigned max_channels() noexcept { return ChannelBudget::kUsualLimit; }

  // The directory by which this process and those of other network namespaces find each other: a name that
  // lives as long as the process. Null: none is wanted. Agent thread.
  virtual const char* rendezvous_directory() noexcept { return nullptr; }

  // ---- The program's descriptors
  enum class Deferred : std::uint8_t {
    kAll,
    kOld,       // those that the last such call found, too
    kAccepted,  // those that were accepted from `remote`
  };
  // Makes streams of connections that the layer above has deferred (Agent::may_defer()). True:
  // others stay deferred. Agent thread. It calls Agent::open_stream().
  virtual bool materialise(Deferred /*which*/, const Endpoint& /*remote*/) noexcept { return false; }
  // Takes a stream back that is lent to the kernel's epoll instances. False: another process has one of the
  // instances, or the program is to modify it first. Agent thread.
  virtual bool take_back(Stream& /*stream*/) noexcept { return false; }
  // Whether waits_past() can tell. False: nobody knows of any wait. Any thread, also with a stream's
  // locks held.
  virtual bool sees_waits() noexcept { return false; }
  // Whether the program waits for what the number `fd` names by a call that the layer above does not see,
  // or it cannot tell. `awaited`: calls that it sees wait for it, too; then whether an unseen one surely
  // does. Agent thread. It may read files.
  virtual bool waits_past(int /*fd*/, bool /*awaited*/) noexcept { return false; }

 protected:
  constexpr AgentHost() noexcept = default;
  ~AgentHost() = default;
};

}  // namespace ringroad
