// One line of the log about a stream.
#pragma once

#include "rsocket-core/agent/agent_host.h"

namespace ringroad {

// "stream LOCAL -> REMOTE (rule NAME): WHAT: REASON; the peer says: REASON", if the log wants it. Any thread.
void log_decision(AgentHost& host, const Stream& stream, const char* what, Reason reason,
                  Reason peer_reason) noexcept;

}  // namespace ringroad
