#include "cli/reason_help.h"

#include <cstddef>
#include <iterator>

namespace ringroad::cli {
namespace {

constexpr const char* kNothing = "nothing";
constexpr const char* kSeePeer = "see PEER-REASON";

constexpr ReasonHelp kHelp[] = {
    {Reason::kNone, "", kNothing},
    {Reason::kPending, "The peer starts it where this end has accepted the connection.",
     "wait for traffic; if it stays so at the server, look at the client's reason"},
    {Reason::kPolicy, "As PEER-REASON, it is the other end's policy.",
     "`ringroad policy explain` at that end; `via` and `ring` must fit at both ends"},
    {Reason::kPeerHasNoRingroad,
     "The stream retries once after 1 s. A new connection asks after 1 s at the earliest, later after 30 s.",
     "is the server preloaded, with a rule for this port and `via`? A device that came up after the server "
     "is found within half a minute"},
    {Reason::kPeerRefused, "", kSeePeer},
    {Reason::kNoRdmaDevice, "Or the rule's `device` is another one.",
     "`rdma link`, `ip route get PEER`, the permissions of `/dev/infiniband`, `PrivateDevices=` of the unit"},
    {Reason::kNoVerbsLibrary, "The log has the loader's message.",
     "install `libibverbs1 librdmacm1`; keep the two `.so` files of Ringroad together"},
    {Reason::kMemlock, "", "`LimitMEMLOCK=` of the unit, or `ulimit -l`"},
    {Reason::kNoMemory, "The stream retries.", "`rdma resource show`; smaller rings; fewer connections"},
    {Reason::kNoDescriptors,
     "The stream retries. If the process comes near a limit that it cannot raise, all its streams stay on "
     "TCP.",
     "`LimitNOFILE=` of the unit"},
    {Reason::kUntrackedIo, "That may be io_uring, a raw system call, or a child.",
     "nothing for this program, or make an exception with `via = \"tcp\"`"},
    {Reason::kUnknownConnection,
     "A proxy or address translation stands between, another process accepted the connection, or `accept` "
     "came too late. The stream retries.",
     "connect directly, or make an exception with `via = \"tcp\"`"},
    {Reason::kBusy,
     "Or the server had not read for a second. The stream retries. For a listener: another process has the "
     "port.",
     "where two servers share one port (SO_REUSEPORT), only the first answers requests"},
    {Reason::kTimeout, "The stream retries.",
     "`rping` between the hosts; a firewall on UDP 4791; an overloaded or stopped peer"},
    {Reason::kVersion, "", "install the same version at both ends"},
    {Reason::kBadRequest, "", "are the two ends different builds? Is it another program? Report it"},
    {Reason::kAddressMismatch, "",
     "several addresses on the way: look at the routes, and at the address to which the client is bound"},
    {Reason::kForged, "",
     "find out which process holds the port on that host; a server that accepts as one user and runs as "
     "another stays on TCP over shm"},
    {Reason::kQpError, "The stream went on over TCP.",
     "`dmesg`, `rdma link`, cables; new connections try it again"},
    {Reason::kPeerGone, "", kNothing},
    {Reason::kPeerGaveUp, "The stream retries.", kSeePeer},
    {Reason::kPeerLeft, "", kSeePeer},
    {Reason::kFork,
     "Or it was in an epoll instance at the fork. In the former case the stream retries as long as that "
     "lasts.",
     "nothing, if one of them closes it. A parent that keeps its copy keeps the connection on TCP: `ss -tnp` "
     "names all that have it"},
    {Reason::kEpoll,
     "It was in several instances when it was connected, or an instance lacked memory or a descriptor.",
     kNothing},
    {Reason::kDescriptorUse, "That is `splice`, stdio, receive timestamps and similar uses.", kNothing},
    {Reason::kFdPassed, "", kNothing},
    {Reason::kExec, "Or it was given to a helper program.", kNothing},
    {Reason::kExit, "", kNothing},
    {Reason::kOob, "", kNothing},
    {Reason::kKtls, "Kernel TLS is such a protocol.", "choose: kTLS or a channel"},
    {Reason::kOperator,
     "That was `ringroad set`. As PEER-REASON, the other end's operator asked, or edited its policy.",
     "`ringroad set PID auto` there"},
    {Reason::kClosing, "It was not worth a promotion before.",
     "nothing; many short connections are best left on TCP with a larger `promote_after`"},
    {Reason::kDisabled, "", "unset it, and restart the program"},
    {Reason::kPeerUnproven, "This is over shm only.",
     "let the program ask sock_diag: `AF_NETLINK` in the unit's `RestrictAddressFamilies=`, `modprobe "
     "tcp_diag`, and the rules for SELinux or AppArmor. A server user without a number in this user "
     "namespace stays on TCP"},
    {Reason::kRedirect, "As PEER-REASON: so did several processes in turn. The stream retries.",
     "nothing, unless it stays so: then look at that connection in every process of the server"},
    {Reason::kIdle,
     "It was unused for the rule's `idle` time, or for the longest of all when another stream needed a "
     "channel.",
     "nothing; a longer `idle`, or a larger `max_channels`, keeps the channel"},
    {Reason::kMaxChannels, "The stream retries.",
     "a larger `max_channels`, if memory and queue pairs allow it"},
    {Reason::kWrongKey, "As PEER-REASON beside `peer_refused`, the peer found that out.",
     "the same `key_file` in both rules; after a change `touch` the policy on both hosts, and reconnect"},
    {Reason::kOtherUserNamespace, "The kernel shows each of them as 65534. This is over shm only.",
     "map that user into the namespace (`podman --userns=keep-id`, `uidmap`), or let `via` be `rdma`"},
    {Reason::kUnseenWait, "As PEER-REASON beside `peer_refused` or `peer_left`, the peer's program does.",
     "nothing: the kernel serves it. Node: `UV_USE_IO_URING=0`"},
    {Reason::kStalled,
     "A sender found no space for 0.5 s; over RDMA, the program read less than a quarter of the ring "
     "meanwhile. The stream retries after 1, 2, 4, 8, 16 s.",
     "nothing; a `ring` of more than 1 MiB never leaves for this"},
    {Reason::kOtherNamespace,
     "It is in another container or on another host, or its address is a service's. This is over shm only.",
     "in a container of the same host: RINGROAD_RENDEZVOUS_DIR and `key_file` at both ends, and the server's "
     "own address; else let `via` be `rdma` or `auto`"},
};

constexpr bool is_complete() {
  for (std::size_t i = 0; i < std::size(kHelp); ++i) {
    if (kHelp[i].reason != static_cast<Reason>(i)) return false;
  }
  return std::size(kHelp) == static_cast<std::size_t>(Reason::kCount);
}
static_assert(is_complete(), "one row for each reason, in the order of RINGROAD_REASONS");

}  // namespace

const ReasonHelp& help_of(Reason reason) noexcept { return kHelp[static_cast<std::size_t>(reason)]; }

}  // namespace ringroad::cli
