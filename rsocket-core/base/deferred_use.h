// What a program did with a connection before there was a Stream for it: libc's own calls, which the
// preload layer has counted (preload/deferred_stream.h).
#pragma once

#include <array>
#include <cstdint>

namespace ringroad {

struct DeferredUse {
  struct Call {
    bool sent = false;
    std::uint32_t bytes = 0;
  };
  static constexpr unsigned kMostCalls = 3;

  std::array<Call, kMostCalls> calls{};  // in the order in which they returned
  unsigned count = 0;                    // of these
  // Calls that are still inside of the kernel; each tells of itself when it returns:
  // Stream::on_deferred_call_returned(). Nothing is promoted before.
  unsigned in_flight_calls = 0;
};

}  // namespace ringroad
