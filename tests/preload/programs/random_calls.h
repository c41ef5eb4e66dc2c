// Calls for StrangePlayer to draw: with arguments that no call can do with, and such that sleep.
#pragma once

#include <cstddef>
#include <span>

namespace ringroad::test {

constexpr std::size_t kWaitBytes = 64;
extern const char kBytes[kWaitBytes];  // to be sent
extern char received[65'536];

// ---- Calls that no program means

struct Call {
  const char* name;
  long (*make)(int fd);
};

// None of them sends anything.
std::span<const Call> bad_sends();

// None of them waits; what one takes is told by its answer.
std::span<const Call> bad_receives();

// What the kernel has to answer for: the stream goes back to it, and that is the end of its channel.
std::span<const Call> calls_for_the_kernel();

std::span<const Call> misuses();

// ---- Calls that sleep while nothing comes

struct Wait {
  const char* name;
  bool restarts;   // after a handler with SA_RESTART
  bool takes;      // the bytes that come
  long (*make)(int fd, int epoll);
};

constexpr std::size_t kAll = 4;  // what one that waits for all of it asks for

std::span<const Wait> waits();

}  // namespace ringroad::test
