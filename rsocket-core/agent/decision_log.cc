#include "rsocket-core/agent/decision_log.h"

#include <cstdio>
#include <new>
#include <string>

namespace ringroad {

void log_decision(AgentHost& host, const Stream& stream, const char* what, Reason reason,
                  Reason peer_reason) noexcept {
  if (!host.wants_log()) return;
  try {
    char line[512];
    const std::string local = stream.tuple().local.to_string();
    const std::string remote = stream.tuple().remote.to_string();
    std::snprintf(line, sizeof line, "stream %s -> %s (rule %s): %s%s%s%s%s", local.c_str(),
                  remote.c_str(), stream.config().rule, what,
                  reason != Reason::kNone ? ": " : "",
                  reason != Reason::kNone ? reason_text(reason) : "",
                  peer_reason != Reason::kNone ? "; the peer says: " : "",
                  peer_reason != Reason::kNone ? reason_text(peer_reason) : "");
    host.log(line);
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace ringroad
