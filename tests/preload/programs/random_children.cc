// Children of StrangePlayer, with copies of all that it has.
#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "tests/preload/programs/random_strange_player.h"

namespace ringroad::test {

void StrangePlayer::helper() {
  const int kind = draw_.below(8);
  if (!may_leave_channels()) return;
  turn([&] {
    static char program[] = "/bin/true";
    char* const arguments[] = {program, nullptr};
    pid_t child = -1;
    switch (kind) {
      case 0:
        child = ::fork();
        if (child == 0) ::_exit(0);
        break;
      case 1:
        child = ::fork();
        if (child == 0) {
          ::execv(program, arguments);
          ::_exit(1);
        }
        break;
      case 2:
        child = ::vfork();
        if (child == 0) {
          ::execv(program, arguments);
          ::_exit(1);
        }
        break;
      case 3:
        if (::posix_spawn(&child, program, nullptr, nullptr, arguments, environ) != 0) child = -1;
        break;
      case 4:
        child = ::fork();
        if (child == 0) {
          for (const Connection& c : connections_) {
            for (const Copy& copy : c.ends[side_].copies) ::close(copy.fd);
          }
          ::_exit(0);
        }
        break;
      case 5:
        child = ::fork();
        if (child == 0) std::exit(0);
        break;
      case 6:
        child = ::fork();
        if (child == 0) ::raise(SIGKILL);
        break;
      default:
        child = ::fork();
        if (child == 0) {
          const pid_t grandchild = ::fork();
          if (grandchild == 0) ::_exit(0);
          ::waitpid(grandchild, nullptr, 0);
          ::_exit(0);
        }
        break;
    }
    int status = -1;
    if (::waitpid(child, &status, 0) != child) status = -1;
    say("helper " + std::to_string(kind) + " = " + std::to_string(status));
    return 0L;
  });
  unsettle();
}

void StrangePlayer::keep_or_release() {
  if (keeps_[turn_]) {
    release();
    return;
  }
  if (!may_leave_channels()) return;
  turn([&] {
    if (::pipe2(keeper_ends_, O_CLOEXEC) != 0) lost();
    keeper_ = ::fork();
    if (keeper_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(keeper_ends_[1]);
      char byte;
      ::_exit(::read(keeper_ends_[0], &byte, 1) < 0 ? 1 : 0);
    }
    ::close(keeper_ends_[0]);
    keeper_ends_[0] = -1;
    say("a child keeps it all");
    return 0L;
  });
  keeps_[turn_] = true;
  for (Connection& c : connections_) c.ends[turn_].held = c.ends[turn_].open();
  unsettle();
}

void StrangePlayer::release() {
  if (!keeps_[turn_]) return;
  turn([&] {
    ::close(keeper_ends_[1]);
    keeper_ends_[1] = -1;
    end_of(keeper_);
    say("the child has ended");
    return 0L;
  });
  keeps_[turn_] = false;
  for (Connection& c : connections_) {
    End& end = c.ends[turn_];
    const bool was_held = end.held;
    end.held = false;
    if (was_held && !end.open()) c.closed(turn_);
  }
  unsettle();
}

}  // namespace ringroad::test
