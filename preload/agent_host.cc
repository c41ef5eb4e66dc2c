#include "preload/agent_host.h"

#include "preload/epolls.h"
#include "preload/log.h"
#include "preload/policy_file.h"
#include "preload/policy_loading.h"
#include "preload/policy_lookup.h"
#include "preload/process_state.h"
#include "preload/process_stats.h"
#include "preload/socket_lifecycle.h"
#include "preload/verbs_loader.h"

namespace ringroad::preload {

constinit ProcessHost agent_host;

Transport* ProcessHost::load_verbs(TransportEvents& events, Reason& why) noexcept {
  return preload::load_verbs(events, why);
}

stats::Segment* ProcessHost::segment() noexcept { return process_stats::own_segment(); }

void ProcessHost::log(const char* line) noexcept { log::write(log::Level::kInfo, line); }

bool ProcessHost::wants_log() noexcept { return log::wants(log::Level::kInfo); }

int ProcessHost::watch_policy() noexcept { return policy_file::watch(); }

void ProcessHost::take_policy_events(int watch_fd) noexcept { policy_file::take_events(watch_fd); }

bool ProcessHost::reload_policy(int watch_fd) noexcept { return policy_loading::reload(watch_fd); }

bool ProcessHost::allows(Role role, const FourTuple& tuple) noexcept {
  return policy_lookup::allows(role, tuple);
}

SharedKey ProcessHost::key_for(const FourTuple& accepted) noexcept {
  return policy_lookup::key_for(accepted);
}

unsigned ProcessHost::max_channels() noexcept { return policy_lookup::max_channels(); }

bool ProcessHost::materialise(Deferred which, const Endpoint& remote) noexcept {
  return socket_lifecycle::materialise(which, remote);
}

const char* ProcessHost::rendezvous_directory() noexcept { return process_state::rendezvous_directory(); }

bool ProcessHost::take_back(Stream& stream) noexcept { return epolls::take_back(stream); }

bool ProcessHost::waits_past(int fd, bool awaited) noexcept { return epolls::waits_past(fd, awaited); }

}  // namespace ringroad::preload
