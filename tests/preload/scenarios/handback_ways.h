// The ways in which a connection changes hands, and its holder.
#pragma once

#include <cstdint>

#include "tests/preload/drivers/actor.h"
#include "tests/preload/scenarios/duplex.h"

namespace ringroad::test {

struct Held {
  Actor& a;
  int fd = -1;
  std::uint64_t received = 0;
  std::uint64_t sent = 0;
  std::uint64_t total = 0;
  bool more = false;     // is unread than the holder has taken
  bool silent = false;   // the peer has gone: nothing is to be sent any more
  bool reset_will_do = false;  // where the kernel alone could do better, and nobody else

  Duplex duplex(int in, int out) const {
    Duplex all;
    all.in = in;
    all.out = silent ? -1 : out;
    all.received = received;
    all.sent = sent;
    all.total = total;
    return all;
  }
  // The heir within this process' memory.
  int use(int in, int out) const {
    const std::string how = duplex(in, out).run();
    const bool right = how == "whole" || (reset_will_do && is_reset(how));
    if (!right) a.log("the heir: %s", how.c_str());
    return right ? 0 : 1;
  }
};

using Way = void (*)(Held& h);

void fork_and_serve(Held& h);
void fork_and_the_child_reads(Held& h);
void fork_and_the_child_writes(Held& h);
void fork_and_the_parent_goes_on(Held& h);
void fork_twice(Held& h);
void become_a_daemon(Held& h);
void fork_dup2_and_exec(Held& h);
void fork_use_and_exec(Held& h);
void fork_and_exec_a_shell(Held& h);
void vfork_dup2_and_exec(Held& h);
void spawn_with_file_actions(Held& h);
void spawn_and_inherit(Held& h);
void run_by_system(Held& h);
void run_by_popen(Held& h);
void pass_by_sendmsg(Held& h);
void pass_by_sendmmsg(Held& h);

}  // namespace ringroad::test
