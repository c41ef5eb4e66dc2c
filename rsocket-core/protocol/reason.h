// Why a stream is on TCP, or why its channel ended. One table: the enum, the printable names and
// the explanations all expand from it; values cross the wire (one byte), so append, never reorder.
#pragma once

#include <cstdint>

namespace ringroad {

// clang-format off
#define RINGROAD_REASONS(X) \
  X(kNone,               "none",                 "no reason: the stream is on its channel, or nothing was tried") \
  X(kPending,            "pending",              "promotion has not started: the rule's promote_after is not reached, or the peer starts it") \
  X(kPolicy,             "policy",               "the policy keeps this connection on TCP") \
  X(kPeerHasNoRingroad,  "peer_has_no_ringroad", "nobody answers promotion requests at the peer's address and port") \
  X(kPeerRefused,        "peer_refused",         "the peer answered with a refusal; its own reason stands beside this one") \
  X(kNoRdmaDevice,       "no_rdma_device",       "no RDMA device reaches the peer's address, or /dev/infiniband is not accessible") \
  X(kNoVerbsLibrary,     "no_verbs_library",     "libringroad-verbs.so, libibverbs or librdmacm could not be loaded") \
  X(kMemlock,            "memlock",              "memory could not be registered: RLIMIT_MEMLOCK is too small") \
  X(kNoMemory,           "no_memory",            "out of memory, queue pairs or completion queues") \
  X(kNoDescriptors,      "no_descriptors",       "out of file descriptors") \
  X(kUntrackedIo,        "untracked_io",         "the kernel counted other bytes than the library: something else used the socket") \
  X(kUnknownConnection,  "unknown_connection",   "the peer's request names a connection that this process does not have") \
  X(kBusy,               "busy",                 "the stream was already being promoted, closed or handed back") \
  X(kTimeout,            "timeout",              "the peer or the fabric did not answer in time") \
  X(kVersion,            "version",              "the peer speaks another version of the protocol") \
  X(kBadRequest,         "bad_request",          "the peer's request or message was malformed") \
  X(kAddressMismatch,    "address_mismatch",     "the request came from another address than the TCP connection") \
  X(kForged,             "forged",               "another process asked for, or answered for, the connection") \
  X(kQpError,            "qp_error",             "the queue pair, the device or the shared memory failed") \
  X(kPeerGone,           "peer_gone",            "the peer's process ended or closed its channel") \
  X(kPeerGaveUp,         "peer_gave_up",         "the peer gave the promotion up") \
  X(kPeerLeft,           "peer_left",            "the peer went back to TCP; its own reason stands beside this one") \
  X(kFork,               "fork",                 "a process and a child of its fork both have the descriptor, or had it on a channel") \
  X(kEpoll,              "epoll",                "the descriptor is in epoll instances in a way that only the kernel can serve") \
  X(kDescriptorUse,      "descriptor_use",       "the program used the descriptor in a way that only the kernel can serve") \
  X(kFdPassed,           "fd_passed",            "the descriptor was sent to another process") \
  X(kExec,               "exec",                 "the descriptor stays open across exec") \
  X(kExit,               "exit",                 "the process is ending") \
  X(kOob,                "oob",                  "out-of-band data was used") \
  X(kKtls,               "ktls",                 "a TCP upper-layer protocol or socket filter was attached") \
  X(kOperator,           "operator",             "the operator asked for TCP") \
  X(kClosing,            "closing",              "the program has closed or shut the connection down") \
  X(kDisabled,           "disabled",             "RINGROAD_DISABLE is set") \
  X(kPeerUnproven,       "peer_unproven",        "the kernel names no owner of the connection's other end, so anybody may have answered") \
  X(kRedirect,           "redirect",             "another process that shares the listener has the connection; the request goes there") \
  X(kIdle,               "idle",                 "it was not used for a while and gave its channel back; it is promoted again when it is used") \
  X(kMaxChannels,        "max_channels",         "as many streams have channels as the policy's max_channels allows, and all of them are busy") \
  X(kWrongKey,           "wrong_key",            "the key files of the two ends differ, or one end has none") \
  X(kOtherUserNamespace, "other_user_namespace", "the peer's user has no name in this user namespace, where all such users look alike") \
  X(kUnseenWait,         "unseen_wait",          "the program waits for the stream by other calls than the library sees: io_uring, raw system calls, a plug-in with a libc of its own") \
  X(kStalled,            "stalled",              "the peer's program read nothing for a while: TCP holds more for it; it is promoted again when it is used") \
  X(kOtherNamespace,     "other_namespace",      "the connection's other end is not in this network namespace, and no rendezvous directory and key lead there")
// clang-format on

enum class Reason : std::uint8_t {
#define RINGROAD_REASON_ENUM(id, name, text) id,
  RINGROAD_REASONS(RINGROAD_REASON_ENUM)
#undef RINGROAD_REASON_ENUM
      kCount
};

// Both return static strings; a value that is out of range (it may come from a peer) gives "invalid".
const char* reason_name(Reason reason) noexcept;
const char* reason_text(Reason reason) noexcept;

// A byte from a peer as a reason: out of range becomes kBadRequest.
Reason reason_from_wire(std::uint8_t value) noexcept;

}  // namespace ringroad
