// What the agent's parts ask of its thread. Agent implements it.
//
// Thread rule: the agent thread's, unless a call says otherwise.
#pragma once

#include <cstdint>

#include "rsocket-core/channel/transport.h"
#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/stream/agent_stream.h"

namespace ringroad {

class AgentLoop {
 public:
  // What an epoll event is about: the low two bits of its cookie. The rest is a stream's id, or a number
  // of the agent's own.
  enum Cookie : std::uint64_t {
    kTcpCookie = 0,
    kChannelCookie = 1,
    kOtherCookie = 2,
    kWakeCookie = (1 << 2) | kOtherCookie,
    kShmCookie = (2 << 2) | kOtherCookie,
    kVerbsCookie = (3 << 2) | kOtherCookie,
    kLeaderCookie = (4 << 2) | kOtherCookie,
    kControlCookie = (5 << 2) | kOtherCookie,
    kPolicyCookie = (6 << 2) | kOtherCookie,
  };

  // Adds `fd` to the agent's epoll instance. False: it is not there; `fd` may be -1.
  virtual bool watch(int fd, Cookie cookie, std::uint32_t events) noexcept = 0;
  // The stream has been given the channel of this promotion: serves it, and finds it by that id from then on.
  virtual void channel_is_up(const AgentStreamPtr& stream, PromotionId id) noexcept = 0;
  // Has the agent thread call ListenerRegistry::stop_answering(). Any thread, with locks held.
  virtual void stop_answering_soon(const Endpoint& local, int rendezvous) noexcept = 0;
  // Whether the program needs the last descriptors, and the agent makes none any more. Any thread.
  virtual bool steps_aside() const noexcept = 0;

 protected:
  ~AgentLoop() = default;
};

}  // namespace ringroad
