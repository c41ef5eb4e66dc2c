// The verbs channel is an object of its own, beside this one, so that a process that meets no RDMA
// peer never maps libibverbs, and a host without it runs all the same.
#pragma once

#include "rsocket-core/channel/transport.h"

namespace ringroad::preload {

// AgentHost::load_verbs. It is tried now and then, by one thread; the log is told of each reason once.
Transport* load_verbs(TransportEvents& events, Reason& why) noexcept;

}  // namespace ringroad::preload
