// The process' policy, agent and statistics, made when the first TCP connection or listener asks for them.
#pragma once

#include "rsocket-core/agent/agent.h"

namespace ringroad::preload::process_start {

// Reads the environment and notes argv[0], which may be null. Called once from the library's
// constructor, so that a program that clears or overwrites them later (nginx does) changes
// nothing. Does nothing else.
void capture(const char* argv0) noexcept;
// Called once, from there too: a fork may come while another thread starts the library.
void watch_forks() noexcept;

// The program asks for a TCP connection or listener: loads the policy and makes the agent, once. Null
// when the library is switched off or there is no policy that lets anything off the kernel.
Agent* agent() noexcept;

}  // namespace ringroad::preload::process_start
