// What a message costs a stream on its channel, for callgrind: both ends in this one thread, so that
// every instruction is counted and none waits. For sends, and with recv for receives:
//
//   valgrind --tool=callgrind --toggle-collect='ringroad::Stream::send(*' build/bin/message_cost
//
// What it says it collected, through the 1000 messages, is what one call takes.
#include <cstdio>
#include <cstdlib>

#include "tests/core/stream_pair.h"

int main(int argc, char** argv) {
  using namespace ringroad;
  const long messages = argc > 1 ? std::atol(argv[1]) : 1000;
  const std::size_t bytes = argc > 2 ? static_cast<std::size_t>(std::atol(argv[2])) : 64;
  if (messages <= 0 || bytes == 0 || bytes > test::StreamPair::kRing / 2) {
    std::fprintf(stderr, "usage: message_cost [MESSAGES [BYTES]]\n");
    return 2;
  }
  test::StreamPair pair;
  pair.promote();
  std::string buffer(bytes, 'x');
  iovec piece{buffer.data(), bytes};
  for (long i = 0; i < messages; ++i) {
    if (pair.a->send(&piece, 1, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes) ||
        pair.b->recv(&piece, 1, 0) != static_cast<ssize_t>(bytes)) {
      std::perror("message_cost");
      return 1;
    }
  }
  std::printf("%ld messages of %zu bytes\n", messages, bytes);
  return 0;
}
