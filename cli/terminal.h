// A terminal that one program has to itself for a while: no echo, keys at once, the other screen.
// It is as it was when this object ends, and while the program is stopped (Ctrl-Z).
//
// Thread rule: one thread, which is the only one of the process: signals are blocked and read.
#pragma once

#include <signal.h>
#include <termios.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace ringroad::cli {

struct TerminalSize {
  std::size_t rows = 24;
  std::size_t columns = 80;
};

class Terminal {
 public:
  // What wait() has found.
  enum class Event { kTimeout, kKeys, kResized, kInterrupted, kEnded, kGone };

  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Whether stdout is a terminal that knows more than to print.
  static bool usable();

  TerminalSize size() const noexcept;
  // False: it is gone.
  bool write(std::string_view text) noexcept;
  // Sleeps until something happens; `keys` are those that were pressed. kEnded: signal() says what
  // the process should end with, once the terminal is as it was.
  Event wait(int timeout_ms, std::string& keys);
  int signal() const noexcept { return signal_; }

 private:
  void enter() noexcept;
  void leave() noexcept;
  void stop() noexcept;

  termios before_{};
  const bool has_keys_;  // stdin is a terminal; before_ is how it was
  bool entered_ = false;
  sigset_t mask_before_{};
  int signals_ = -1;
  int signal_ = 0;
};

}  // namespace ringroad::cli
