// What the programs that count a message's cost have in common: two streams in this one thread, so that
// every instruction is counted and none waits.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/core/stream_pair.h"

namespace ringroad::test {

// [MESSAGES [BYTES]]: so many sends, each with its receive, over the channels that `make(ring bytes)` gives.
template <typename Make>
int send_messages(int argc, char** argv, Make make) {
  const long messages = argc > 1 ? std::atol(argv[1]) : 1000;
  const std::size_t bytes = argc > 2 ? static_cast<std::size_t>(std::atol(argv[2])) : 64;
  if (messages <= 0 || bytes == 0 || bytes > StreamPair::kRing / 2) {
    std::fprintf(stderr, "usage: %s [MESSAGES [BYTES]]\n", argv[0]);
    return 2;
  }
  StreamPair pair;
  pair.start();
  auto [a, b] = make(StreamPair::kRing);
  if (a == nullptr || b == nullptr) {
    std::fprintf(stderr, "%s: no channels\n", argv[0]);
    return 1;
  }
  pair.a->channel_up(std::move(a), pair.b_nonce);
  pair.b->channel_up(std::move(b), pair.a_nonce);
  const bool up = pair.pump_until([&] {
    return pair.a->state() == State::kOnChannel && pair.b->state() == State::kOnChannel;
  });
  std::string buffer(bytes, 'x');
  iovec piece{buffer.data(), bytes};
  for (long i = 0; i < messages; ++i) {
    if (!up || pair.a->send(&piece, 1, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes) ||
        pair.b->recv(&piece, 1, 0) != static_cast<ssize_t>(bytes)) {
      std::fprintf(stderr, "%s: message %ld did not go through\n", argv[0], i);
      return 1;
    }
  }
  std::printf("%ld messages of %zu bytes\n", messages, bytes);
  return 0;
}

}  // namespace ringroad::test
