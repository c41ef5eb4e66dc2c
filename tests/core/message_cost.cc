// What a message costs a stream on shared memory, for callgrind (tests/cost):
//
//   valgrind --tool=callgrind --toggle-collect='ringroad::Stream::send(*' build/bin/message_cost
//
// What it says it collected, through the 1000 messages, is what one call takes.
#include "tests/core/message_loop.h"

int main(int argc, char** argv) {
  using namespace ringroad;
  return test::send_messages(argc, argv, [](std::uint32_t ring) { return make_shm_pair(ring); });
}
