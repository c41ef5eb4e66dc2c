// Both directions of a connection in one process: a pattern goes out, a pattern comes in, each with its
// length behind it and then the end of file, so that each holder of the descriptor can tell by itself whether
// all came, once and in order.
#pragma once

#include <cstdint>
#include <string>

namespace ringroad::test {

struct Duplex {
  int in = -1;                    // -1: receives nothing
  int out = -1;                   // -1: sends nothing
  std::uint64_t received = 0;     // of the other end's pattern, before
  std::uint64_t sent = 0;         // of the own, before
  std::uint64_t total = 0;        // of the own
  // Until both have ended. "whole", or what was wrong.
  std::string run();
};

// Whether Duplex::run() was told of a reset, and of nothing else: no wrong byte, no end before the end.
bool is_reset(const std::string& how_it_was);

// The length that stands behind a pattern.
std::string trailer(std::uint64_t total);

// A program of its own: `socket_scenarios --duplex IN OUT RECEIVED SENT TOTAL [silent]`; `--receive SOCKET
// RECEIVED SENT TOTAL [silent]` gets its connection by SCM_RIGHTS first. The exit status is 0 for "whole", 3
// for a reset, and otherwise it says on its standard error what was wrong.
int duplex_program(int argc, char** argv);

}  // namespace ringroad::test
