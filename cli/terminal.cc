#include "cli/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace ringroad::cli {
namespace {

// The other screen, without a cursor, and lines that are too long end at its edge.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
constexpr std::string_view kLeave = "\x1b[?7h\x1b[?25h\x1b[?1049l";
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH};

}  // namespace

bool Terminal::usable() {
  const char* kind = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && kind != nullptr && *kind != '\0' &&
         std::string_view(kind) != "dumb";
}

Terminal::Terminal() : has_keys_(tcgetattr(STDIN_FILENO, &before_) == 0) {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int number : kSignals) sigaddset(&mask, number);
  sigprocmask(SIG_BLOCK, &mask, &mask_before_);
  signals_ = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  enter();
}

Terminal::~Terminal() {
  leave();
  if (signals_ >= 0) close(signals_);
  sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

void Terminal::enter() noexcept {
  if (has_keys_) {
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
  }
  write(kEnter);
  entered_ = true;
}

void Terminal::leave() noexcept {
  if (!entered_) return;
  entered_ = false;
  write(kLeave);
  if (has_keys_) tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

void Terminal::stop() noexcept {
  leave();
  raise(SIGSTOP);
  // Continued; perhaps by a shell that has other settings now.
  if (has_keys_) tcgetattr(STDIN_FILENO, &before_);
  enter();
}

TerminalSize Terminal::size() const noexcept {
  winsize told{};
  TerminalSize size;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &told) == 0) {
    if (told.ws_row > 0) size.rows = told.ws_row;
    if (told.ws_col > 0) size.columns = told.ws_col;
  }
  return size;
}

bool Terminal::write(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      pollfd out{STDOUT_FILENO, POLLOUT, 0};
      poll(&out, 1, -1);
    } else if (n == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

Terminal::Event Terminal::wait(int timeout_ms, std::string& keys) {
  keys.clear();
  pollfd fds[2] = {{signals_, POLLIN, 0}, {has_keys_ ? STDIN_FILENO : -1, POLLIN, 0}};
  const int n = poll(fds, 2, timeout_ms);
  if (n == 0) return Event::kTimeout;
  signalfd_siginfo info;
  if ((fds[0].revents & POLLIN) != 0 && read(signals_, &info, sizeof info) == sizeof info) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGINT) return Event::kInterrupted;
    if (number == SIGTSTP) stop();
    if (number == SIGTSTP || number == SIGWINCH) return Event::kResized;
    signal_ = number;
    return Event::kEnded;
  }
  if ((fds[1].revents & (POLLIN | POLLHUP | POLLERR)) == 0) return Event::kTimeout;
  char typed[256];
  const ssize_t got = read(STDIN_FILENO, typed, sizeof typed);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return Event::kTimeout;
  if (got <= 0) return Event::kGone;
  keys.assign(typed, static_cast<std::size_t>(got));
  return Event::kKeys;
}

}  // namespace ringroad::cli
