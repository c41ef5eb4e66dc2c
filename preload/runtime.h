// The process' policy, agent and statistics, made when the first TCP connection or listener asks for
// them, and what the wrappers need to know about each.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cerrno>

#include "preload/descriptors.h"

namespace ringroad::preload::runtime {

// Reads the environment and notes argv[0], which may be null. Called once from the library's
// constructor, so that a program that clears or overwrites them later (nginx does) changes
// nothing. Does nothing else.
void capture_start(const char* argv0) noexcept;
// Called once, from there too: a fork may come while another thread starts the library.
void watch_forks() noexcept;

// The program asks for a TCP connection or listener: loads the policy and makes the agent, once. Null
// when the library is switched off or there is no policy that lets anything off the kernel.
Agent* agent() noexcept;
// The agent if there is one already.
Agent* existing_agent() noexcept;

// Since the process started: a listener that the policy did not know of may be one now.
bool policy_was_edited() noexcept;
// The rule for a connection; null: stay on TCP. It lives as long as the process. Of the local
// address, the port of an accepted one is looked at.
const policy::Settings* rule_of(StreamRole role, const Endpoint& local,
                                const Endpoint& remote) noexcept;
void configure(const policy::Settings& rule, StreamConfig& config) noexcept;
bool is_tcp(int fd) noexcept;
// A connection of the rule's has ended, and was never a stream.
void count_early(const policy::Settings& rule, const EarlyUse& early) noexcept;
// Whether any accepted connection of a listener at `local` might be let off, and over what.
bool may_accept(const Endpoint& local, bool& via_shm, bool& via_rdma) noexcept;

// Makes `fd`, a connected TCP socket, a managed stream if it can be. `fresh`: the number was made by
// this very call (accept), so nothing can have been done with it yet.
SocketRef adopt(int fd, StreamRole role, const FourTuple& tuple, const StreamConfig& config,
                bool nonblocking, bool fresh) noexcept;
// The child of a fork makes a call on a stream that it has inherited: it gets one of its own.
void inherit(int fd, const SocketRef& socket) noexcept;
// The program is about to have its system calls filtered (seccomp(2)), and has not reckoned with those of
// the library: every stream returns to the kernel, and none is made any more.
void use_the_kernel_only(Reason reason = Reason::kDescriptorUse) noexcept;
// A call of the program's has found no free descriptor (EMFILE). True: the library has given back some of its
// own, and the call is to be made again. Keeps errno.
bool made_room() noexcept;
// From this number on the program comes near to its limit on descriptors, where the library's count for that, too.
extern std::atomic<int> near_limit;
// It has got such a one: if it has, the library gives back its own. Keeps errno.
void come_near(int number) noexcept;
// The program wants one of the library's own numbers for a descriptor. False: it is in use still, or beyond the
// program's limit. Keeps errno.
bool gives_way(int number) noexcept;
// `call` makes a descriptor. It is made again where the library had what it lacked.
template <typename Call>
inline int with_room(Call call) {
  const int result = call();
  if (hardly_ever(result < 0)) return errno == EMFILE && made_room() ? call() : result;
  if (hardly_ever(result >= near_limit.load(std::memory_order_relaxed))) come_near(result);
  return result;
}
bool on_kernel_only() noexcept;
// How often this process has begun to fork.
unsigned forks() noexcept;
// connect() has succeeded for a kConnecting socket: make it a stream, and honour the rule's
// promote_after and wait. False if it is not connected (yet).
bool established(int fd, const SocketRef& socket) noexcept;

// True in the process that made the agent; false in a vfork child, which shares our memory, and in a
// copy that nobody has prepared.
bool owns_memory() noexcept;
// The same for who changes what a number names, without a system call unless the memory has ever been lent
// (lent_memory.h). Wrong in a child that borrows it unseen.
bool owns_numbers() noexcept;
// True in both.
bool shares_memory() noexcept;

// What `fd` stands for is about to be used by something other than this library's callers: another
// program, stdio. Its stream, if it is one, is on TCP for good on return (after at most 2 s), with that
// reason. Also in a vfork child, on its parent's behalf. Keeps errno.
void give_away(int fd, Reason reason) noexcept;
// The same for a program that inherits whatever this one has as standard input, output and error.
void give_away_stdio() noexcept;

// The process is about to end or to become another program. True: exec_failed() must follow if it does
// not become one.
bool leave(Reason reason) noexcept;
// After a leave(kExec) that was true: there was no such program. Keeps errno.
void exec_failed() noexcept;
// `call` is an exec: it returns where it fails.
template <typename Call>
int become(Call call) {
  const bool has_left = leave(Reason::kExec);
  const int result = call();
  if (has_left) exec_failed();
  return result;
}

}  // namespace ringroad::preload::runtime
