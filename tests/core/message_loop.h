// What the programs that count a message's cost have in common: two streams in this one thread, so that
// every instruction is counted and none waits.
//
// Included once by a program: it has a clock of its own, by which a poll is sent to while it lasts.
#pragma once

#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "tests/core/stream_pair.h"

namespace ringroad::test {

// A thread that has asked for the time so often is sent a message; 0: none.
inline int asks_until_sent = 0;
inline std::function<void()> send_meanwhile;

}  // namespace ringroad::test

// A tenth of a microsecond later than the last time.
extern "C" int clock_gettime(clockid_t, timespec* ts) noexcept {
  using namespace ringroad::test;
  static std::int64_t now = 1'000'000'000;
  now += 100;
  *ts = {now / 1'000'000'000, now % 1'000'000'000};
  if (asks_until_sent > 0 && --asks_until_sent == 0) send_meanwhile();
  return 0;
}

namespace ringroad::test {

// [MESSAGES [BYTES [polled]]]: so many sends, each with its receive, over the channels that `make(ring
// bytes)` gives. Polled: the message comes while its receiver polls already.
template <typename Make>
int send_messages(int argc, char** argv, Make make) {
  const long messages = argc > 1 ? std::atol(argv[1]) : 1000;
  const std::size_t bytes = argc > 2 ? static_cast<std::size_t>(std::atol(argv[2])) : 64;
  const bool polled = argc > 3 && std::string(argv[3]) == "polled";
  if (messages <= 0 || bytes == 0 || bytes > StreamPair::kRing / 2 || argc > (polled ? 4 : 3)) {
    std::fprintf(stderr, "usage: %s [MESSAGES [BYTES [polled]]]\n", argv[0]);
    return 2;
  }
  constexpr int kAsksBeforeIt = 3;
  StreamPair pair;
  if (polled) let_b_poll(pair, false);
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
  const auto send = [&] {
    return pair.a->send(&piece, 1, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
  };
  send_meanwhile = [&] { send(); };
  for (long i = 0; i < messages; ++i) {
    if (polled) asks_until_sent = kAsksBeforeIt;
    if (!up || (!polled && !send()) ||
        pair.b->recv(&piece, 1, 0) != static_cast<ssize_t>(bytes)) {
      std::fprintf(stderr, "%s: message %ld did not go through\n", argv[0], i);
      return 1;
    }
  }
  std::printf("%ld messages of %zu bytes\n", messages, bytes);
  return 0;
}

}  // namespace ringroad::test
