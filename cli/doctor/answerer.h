// `ringroad doctor --answer`: what a peer's probe talks to.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "policy/policy.h"

namespace ringroad::cli::doctor {

constexpr std::uint16_t kAnswerPort = 4790;
// What it says first, so that nobody sends a probe to something else.
constexpr char kGreeting[] = "ringroad-answer 1\n";
// A message begins with its length, these bytes included, in network byte order; it is sent back.
constexpr std::size_t kLengthBytes = 4;
constexpr std::uint32_t kLongestMessage = 1U << 20;

// `where`: empty, a port, or ADDRESS:PORT. Replaces this process by one that is preloaded, under
// the RDMA rules of the policy; returns the exit status if that fails.
int answer(const std::string& where, const policy::LoadResult& loaded, const std::string& library);

// Under that process's policy: the first rule that holds the address decides.
bool is_answered(const policy::Policy& policy, const Address& peer);

// What an error of accept(2) means for a server: the next call may do better, or may once others
// have given something back; or none will.
enum class AcceptError : std::uint8_t { kRetry, kPause, kEnd };
AcceptError meaning_of(int error) noexcept;

// Greets the peer at the other end of the socket and sends its messages back, for that time at
// most, however it spreads them.
void converse(int fd, std::chrono::milliseconds time);

// That other process. Answers each peer that an RDMA rule of the policy holds, until SIGINT or SIGTERM.
int serve_answers(const std::string& where);

}  // namespace ringroad::cli::doctor
