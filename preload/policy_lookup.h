// What the policy says of a connection or a listener of this program.
//
// Thread rule: any thread at any time after process_facts::set_names().
#pragma once

#include "policy/settings.h"
#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/stream/stream.h"

namespace ringroad::preload::policy_lookup {

// The rule for a connection; null: stay on TCP. It lives as long as the process. Of the local
// address, the port of an accepted one is looked at.
const policy::Settings* rule_of(Role role, const Endpoint& local,
                                const Endpoint& remote) noexcept;
void configure(const policy::Settings& rule, StreamConfig& config) noexcept;
// Whether any accepted connection of a listener at `local` might be let off, and over what.
bool may_accept(const Endpoint& local, bool& via_shm, bool& via_rdma) noexcept;
// AgentHost::allows, key_for and max_channels: by the policy that holds now, also where every stream is the
// kernel's.
bool allows(Role role, const FourTuple& tuple) noexcept;
SharedKey key_for(const FourTuple& accepted) noexcept;
unsigned max_channels() noexcept;

}  // namespace ringroad::preload::policy_lookup
