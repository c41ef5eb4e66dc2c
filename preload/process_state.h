// What every other part asks about the process: whose memory this is, its agent, how often it has forked, and
// by which directory other network namespaces find it.
//
// Thread rule: the questions by any thread at any time. The rest is the start's and the fork's.
#pragma once

namespace ringroad {
class Agent;
}

namespace ringroad::preload::process_state {

// The agent if there is one already.
Agent* existing_agent() noexcept;
void set_agent(Agent* agent) noexcept;

// Kept by the caller; null: none.
const char* rendezvous_directory() noexcept;
void set_rendezvous_directory(const char* directory) noexcept;

// True in the process that made the agent; false in a vfork child, which shares our memory, and in a
// copy that nobody has prepared.
bool owns_memory() noexcept;
// The same for a caller that changes what a number names, without a system call unless the memory has ever
// been lent (lent_memory.h). Wrong in a child that borrows it unseen.
bool owns_numbers() noexcept;
// True in both.
bool shares_memory() noexcept;
// This process is the owner from now on.
void claim_memory() noexcept;
// Once, before claim_memory(): copies that no handler of fork(2) sees are told apart from now on.
void watch_for_copies() noexcept;

// How often this process has begun to fork.
unsigned forks() noexcept;
void count_fork() noexcept;

// Whether every stream is the kernel's, and none is made any more (socket_lifecycle::use_the_kernel_only()).
bool on_kernel_only() noexcept;
void set_on_kernel_only() noexcept;

}  // namespace ringroad::preload::process_state
