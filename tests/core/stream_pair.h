// Two streams in one process: a real TCP connection over loopback, and channels made by hand. No
// thread: pump() does what the agent would do, so that a test decides what happens when.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "rsocket-core/channel/shm/shm_channel.h"
#include "rsocket-core/stream/agent_stream.h"

namespace ringroad::test {

inline constexpr State kOnTcp = State::kOnTcp;
inline constexpr State kOnChannel = State::kOnChannel;

class QuietHost final : public StreamHost {
 public:
  void attend(Stream&) noexcept override { ++attended; }
  void start_promotion(Stream&) noexcept override { ++asked; }
  void unwatch(Stream&, int) noexcept override {}
  bool sees_waits() noexcept override { return sees; }
  bool waits_past(const Stream&, bool) noexcept override {
    if (meanwhile) meanwhile();
    return waits;
  }
  std::atomic<int> attended{0};
  std::atomic<int> asked{0};
  bool sees = false;
  bool waits = false;
  std::function<void()> meanwhile;  // while it is looked for them
};

// Descriptors of a connected TCP connection: connector, accepted.
inline std::pair<int, int> tcp_pair(const char* at = "127.0.0.1") {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  EXPECT_EQ(1, inet_pton(AF_INET, at, &address.sin_addr));
  socklen_t length = sizeof address;
  EXPECT_EQ(0, bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address));
  EXPECT_EQ(0, listen(listener, 4));
  EXPECT_EQ(0, getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length));
  const int connector = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(0, connect(connector, reinterpret_cast<sockaddr*>(&address), sizeof address));
  const int accepted = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  EXPECT_GE(accepted, 0);
  close(listener);
  return {connector, accepted};
}

// Has the kernel delivered what was written? Loopback does so at once, but not always within the
// writing call.
inline bool readable(int fd, int timeout_ms) {
  pollfd p{fd, POLLIN, 0};
  return poll(&p, 1, timeout_ms) == 1;
}

struct StreamPair {
  static constexpr std::uint32_t kRing = 64 * 1024;

  QuietHost host;
  int a_fd = -1;
  int b_fd = -1;
  AgentStreamPtr a;  // connector
  AgentStreamPtr b;  // accepted
  Nonce a_nonce{};
  Nonce b_nonce{};

  explicit StreamPair(std::uint32_t ring = kRing) : StreamPair(StreamConfig{}, ring) {}

  // Carried as a test wants it, in all but how they move.
  explicit StreamPair(StreamConfig config, std::uint32_t ring = kRing,
                      stats::Segment* segment = nullptr)
      : ring_bytes(ring) {
    std::tie(a_fd, b_fd) = tcp_pair();
    config.via_shm = true;
    if (config.promote_messages == StreamConfig{}.promote_messages) config.promote_messages = 0;
    config.ring_bytes = ring;
    config.spin_ns = 0;
    FourTuple tuple;
    Endpoint::local_of(a_fd, tuple.local);
    Endpoint::peer_of(a_fd, tuple.remote);
    static std::uint64_t next_id = 1;
    a = std::make_shared<AgentStream>(&host, segment, next_id++, a_fd, Role::kConnect, tuple,
                                 config, true);
    b = std::make_shared<AgentStream>(&host, segment, next_id++, b_fd, Role::kAccept,
                                 tuple.reversed(), config, true);
  }

  ~StreamPair() {
    a.reset();
    b.reset();
    if (a_fd >= 0) close(a_fd);
    if (b_fd >= 0) close(b_fd);
  }

  // Both ends have agreed to build a channel.
  void start() {
    ASSERT_TRUE(make_nonce(a_nonce));
    ASSERT_TRUE(make_nonce(b_nonce));
    ASSERT_EQ(Reason::kNone, a->promotion_started(a_nonce));
    ASSERT_EQ(Reason::kNone, b->promotion_started(b_nonce));
  }

  // Only `a` has come to its end of the channel: the other one.
  std::unique_ptr<Channel> a_channel_up() {
    start();
    auto [ca, cb] = make_shm_pair(ring_bytes);
    a->channel_up(std::move(ca), b_nonce);
    return std::move(cb);
  }

  void channels_up(ShmWakeKind kind = ShmWakeKind::kOneEvent) {
    auto [ca, cb] = make_shm_pair(ring_bytes, kind);
    ASSERT_NE(nullptr, ca);
    a->channel_up(std::move(ca), b_nonce);
    b->channel_up(std::move(cb), a_nonce);
  }

  // The agents of both ends, until `done` or nothing has happened for a while.
  template <typename Done>
  bool pump_until(Done done) {
    for (int i = 0; i < 2000; ++i) {
      a->service();
      b->service();
      if (done()) return true;
      if (i > 20) poll(nullptr, 0, 1);
    }
    return false;
  }

  void promote(ShmWakeKind kind = ShmWakeKind::kOneEvent) {
    start();
    channels_up(kind);
    ASSERT_TRUE(pump_until([&] {
      return a->state() == State::kOnChannel && b->state() == State::kOnChannel;
    })) << state_name(a->state())
        << " " << state_name(b->state()) << " " << reason_name(a->reason());
  }

  std::uint32_t ring_bytes;
};

// The accepted end anew, of a rule that lets it poll for so long that a test would notice.
inline constexpr std::int64_t kLongSpin = 20'000'000'000;
inline void let_b_poll(StreamPair& p, bool nonblocking) {
  StreamConfig config = p.b->config();
  config.spin_ns = kLongSpin;
  p.b = std::make_shared<AgentStream>(&p.host, nullptr, p.b->id() + 1000, p.b_fd, Role::kAccept,
                                 p.b->tuple(), config, nonblocking);
}

// The same, then promoted.
inline AgentStreamPtr make_b_poll(StreamPair& p, bool nonblocking = true) {
  let_b_poll(p, nonblocking);
  p.promote();
  return p.b;
}

// As a program that finds no room while the stream changes its carrier and does not wait for it: where one
// thread plays program and agents nobody else would bring the change to its end.
inline ssize_t send_text_unless_held(Stream& s, const std::string& text) {
  if (s.tx_is_held()) {
    errno = EAGAIN;
    return -1;
  }
  iovec iov{const_cast<char*>(text.data()), text.size()};
  return s.send(&iov, 1, MSG_NOSIGNAL);
}

inline ssize_t send_text(Stream& s, const std::string& text, int flags = 0) {
  iovec iov{const_cast<char*>(text.data()), text.size()};
  return s.send(&iov, 1, flags | MSG_NOSIGNAL);
}

// One receive of up to `n` bytes: the bytes, or "<errno>".
inline std::string recv_text(Stream& s, std::size_t n, int flags = 0) {
  std::string buffer(n, '\0');
  iovec iov{buffer.data(), n};
  const ssize_t r = s.recv(&iov, 1, flags);
  if (r < 0) return "<" + std::string(strerrorname_np(errno)) + ">";
  buffer.resize(static_cast<std::size_t>(r));
  return buffer;
}

}  // namespace ringroad::test
