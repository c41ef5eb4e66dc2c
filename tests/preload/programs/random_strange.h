// Operations of programs that nobody here wrote: what random_operations draws beside the ordinary ones.
//
// An ordinary operation is done where a program may do it: in a thread that ends in one of three ways, on the
// smallest stack, in a handler, in a child, under a lowered limit, while a timer's signals rain, behind the
// close of every number that is not the program's. And there are operations of its own: arguments that no
// call can do with, calls that sleep until a signal ends them or a handler jumps out of them, threads that
// sleep until another thread or the peer does something, children that come and go.
//
// Each operation is drawn from the seed and its own number, so any of them can be left out and the rest are
// drawn as before: that is how a difference is made short.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/preload/programs/random_player.h"

namespace ringroad::test {

// Limits that a seed has for all its run, set before anything is connected. In both processes.
void lower_limits_at_the_start(std::uint64_t seed);

// `only`: the numbers of the operations that are done; none: all.
std::unique_ptr<Player> strange_player(int side, std::uint64_t seed, int to_peer, int from_peer,
                                       const std::vector<long>& only);

}  // namespace ringroad::test
