// A stream's state and what else there may be to tell of it, in one word: that it is on its channel and there
// is nothing else to tell is one comparison, which each send makes.
#pragma once

#include <atomic>
#include <cstdint>

#include "rsocket-core/protocol/state.h"

namespace ringroad {

// Thread rule: any thread may call anything. What a change means for others is the caller's locks' matter:
// looks under one of them are relaxed. state() and error() are also asked without a lock by a thread about to
// sleep (WaitList), so they, and what changes them, are seq_cst.
class StateWord {
 public:
  enum Mark : std::uint64_t {
    kPeerClosed = 1U << 8,    // TCP ended after an orderly FIN
    kPeerClosing = 1U << 9,   // its FIN said that this will come
    kShutWr = 1U << 10,       // the program asked for it: no more sends
    kStalled = 1U << 11,      // a send waits for room
  };

  State state() const noexcept {
    return static_cast<State>(word_.load(std::memory_order_seq_cst) & kStateBits);
  }
  bool is(State state) const noexcept {
    return (word_.load(std::memory_order_relaxed) & kStateBits) == static_cast<std::uint64_t>(state);
  }
  bool is(Mark mark) const noexcept { return (word_.load(std::memory_order_relaxed) & mark) != 0; }
  // Nothing else but this, and `aside`, which does not matter, holds.
  bool is_only(State state, std::uint64_t aside = 0) const noexcept {
    return (word_.load(std::memory_order_relaxed) & ~aside) == static_cast<std::uint64_t>(state);
  }

  // REQUIRES: nobody else moves it meanwhile. Marks and errors may come.
  void move(State from, State to) noexcept {
    word_.fetch_xor(static_cast<std::uint64_t>(from) ^ static_cast<std::uint64_t>(to),
                    std::memory_order_seq_cst);
  }
  // True: it was there before.
  bool mark(Mark mark) noexcept {
    return (word_.fetch_or(mark, std::memory_order_relaxed) & mark) != 0;
  }
  void unmark(Mark mark) noexcept { word_.fetch_and(~mark, std::memory_order_relaxed); }

  // An errno value, to be told once, by whichever call comes first; 0: none.
  int error() const noexcept {
    return static_cast<int>(word_.load(std::memory_order_seq_cst) >> kErrorShift);
  }
  void set_error(int error) noexcept {
    std::uint64_t was = word_.load(std::memory_order_relaxed);
    while (!word_.compare_exchange_weak(was, (was & ~kErrorBits) | to_bits(error),
                                        std::memory_order_seq_cst, std::memory_order_relaxed)) {
    }
  }
  int take_error() noexcept {
    return static_cast<int>(word_.fetch_and(~kErrorBits, std::memory_order_relaxed) >> kErrorShift);
  }

 private:
  static constexpr unsigned kErrorShift = 32;
  static constexpr std::uint64_t kStateBits = 0xff;
  static constexpr std::uint64_t kErrorBits = ~std::uint64_t{0} << kErrorShift;
  static constexpr std::uint64_t to_bits(int error) noexcept {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(error)) << kErrorShift;
  }

  std::atomic<std::uint64_t> word_{static_cast<std::uint64_t>(State::kOnTcp)};
};

}  // namespace ringroad
