#include "preload/listeners.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "preload/fd_table.h"
#include "preload/policy_lookup.h"
#include "preload/process_start.h"
#include "preload/process_state.h"
#include "preload/seen_options.h"
#include "rsocket-core/agent/agent.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/net/own_addresses.h"

namespace ringroad::preload::listeners {

namespace {

// What the rendezvous directory's paths depend on.
ListenerFacts facts_of(int fd, const Endpoint& local) noexcept {
  ListenerFacts facts;
  if (process_state::rendezvous_directory() == nullptr) return facts;
  facts.network = network_of(fd);
  int v6_only = 0;
  socklen_t length = sizeof v6_only;
  facts.v6_only = local.is_any() && !local.is_v4() &&
                  sys::getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, &length) == 0 && v6_only != 0;
  return facts;
}

}  // namespace

bool consider(int fd, bool waits) noexcept {
  if (fd_table::managed(fd)) return false;  // listen() again changes only the backlog
  Endpoint local;
  if (!Endpoint::local_of(fd, local) || local.port == 0 || !seen_options::is_tcp(fd)) return false;
  Agent* agent = process_start::agent();
  bool via_shm = false;
  bool via_rdma = false;
  if (agent == nullptr || !policy_lookup::may_accept(local, via_shm, via_rdma)) return false;
  SocketRef socket = fd_table::insert(fd, FdEntry::Kind::kListener);
  if (!socket) return false;
  socket->endpoint = local;
  seen_options::note_all(fd);  // what it accepts is as it is
  agent->listen(local, via_shm, via_rdma, waits, facts_of(fd, local));
  return true;
}

void consider_unknown(int fd) noexcept {
  if (fd_table::managed(fd)) return;
  const int saved = errno;
  int listens = 0;
  socklen_t length = sizeof listens;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0 &&
      seen_options::is_tcp(fd) && process_start::agent() != nullptr &&
      process_state::owns_numbers()) {
    const fd_table::FdMutation one_at_a_time;  // several threads may accept there
    consider(fd, false);
  }
  errno = saved;
}

}  // namespace ringroad::preload::listeners
