// What poll(2) and select(2) of streams have in common.
#pragma once

#include <poll.h>

#include <csignal>
#include <cstdint>
#include <ctime>
#include <limits>
#include <new>

#include "rsocket-core/base/sys.h"

namespace ringroad::preload {

inline constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

// `deadline`: CLOCK_MONOTONIC, in nanoseconds; 0: do not sleep. False: the kernel says what is
// wrong with the time-out.
bool deadline_from(const timespec* timeout, std::int64_t& deadline) noexcept;

// The same of a time-out in milliseconds; below 0: none.
inline std::int64_t deadline_of(int timeout_ms) noexcept {
  if (timeout_ms < 0) return kForever;
  return timeout_ms == 0 ? 0 : sys::now_ns() + std::int64_t{timeout_ms} * 1'000'000;
}

// As ppoll(2), of a set that has streams in it. A cancellation point: within cancellation::point().
// `bounded`: RLIMIT_NOFILE holds for it.
int poll_streams(pollfd* fds, nfds_t count, std::int64_t deadline, const sigset_t* mask,
                 bool bounded);

// Memory for one call: `few` entries on the stack, more from the heap (memory.cc). A program's thread may
// have a small stack.
template <typename T, std::size_t few>
class Scratch {
 public:
  explicit Scratch(std::size_t count) noexcept {
    if (count <= few) {
      data_ = reinterpret_cast<T*>(inline_);
    } else {
      data_ = static_cast<T*>(::operator new(count * sizeof(T), std::nothrow));
    }
    for (std::size_t i = 0; data_ != nullptr && i < count; ++i) new (&data_[i]) T();
    count_ = count;
  }
  ~Scratch() {
    for (std::size_t i = 0; data_ != nullptr && i < count_; ++i) data_[i].~T();
    if (data_ != reinterpret_cast<T*>(inline_)) ::operator delete(data_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* data() noexcept { return data_; }

 private:
  alignas(T) unsigned char inline_[few * sizeof(T)];
  T* data_;
  std::size_t count_ = 0;
};

}  // namespace ringroad::preload
