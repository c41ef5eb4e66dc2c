// A peer that writes frames of its own making into a switch.
#include "rsocket-core/stream/agent_stream.h"

#include <cstring>

#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

// Right connection, right channel, wrong process: one end's stream, and a forger that holds the other
// end of the channel but not of the TCP connection.
struct Forged : StreamPair {
  // The forger stands where the other end of `victim` should.
  explicit Forged(Role victim) {
    start();
    auto [mine, theirs] = make_shm_pair(ring_bytes);
    forger = std::move(theirs);
    const bool connector = victim == Role::kConnect;
    (connector ? b : a)->promotion_refused(Reason::kPolicy, Reason::kNone);  // knows nothing of it
    (connector ? a : b)->channel_up(std::move(mine), connector ? b_nonce : a_nonce);
  }
  void say(ControlType type, std::uint64_t value) {
    ControlMessage m;
    m.type = static_cast<std::uint8_t>(type);
    m.value = value;
    ASSERT_TRUE(forger->send_control(m));
  }
  bool hears(ControlType type) {
    ControlMessage m;
    return pump_until([&] {
      forger->progress();
      return forger->take_control(m) && m.type == static_cast<std::uint8_t>(type);
    });
  }
  std::unique_ptr<Channel> forger;
};

TEST(ForgedStream, TheAskedEndNeitherFreezesNorWritesForOneThatHasNotProvedItself) {
  Forged p(Role::kAccept);
  p.say(ControlType::kSwitch, 0);
  ASSERT_TRUE(p.hears(ControlType::kSwitchAck));
  p.say(ControlType::kSwitchAck, 0);  // of nothing
  EXPECT_EQ(5, send_text(*p.b, "reply"));
  ASSERT_TRUE(readable(p.a_fd, 1000));
  EXPECT_EQ("reply", recv_text(*p.a, 100));
  EXPECT_EQ(7, send_text(*p.a, "request"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  ASSERT_TRUE(p.pump_until([&] { return recv_text(*p.b, 100) == "request"; }));
  EXPECT_EQ(kOnTcp, p.b->state());
  EXPECT_EQ("<EAGAIN>", recv_text(*p.a, 100));
}

TEST(ForgedStream, TheRingIsNeverReadBeforeTheTokenIsSeen) {
  Forged p(Role::kAccept);
  p.say(ControlType::kSwitch, 0);
  const Channel::View view = p.forger->tx_view();
  std::memcpy(view.data, "evil", 4);
  p.forger->commit(4);
  ASSERT_TRUE(p.hears(ControlType::kSwitchAck));
  EXPECT_EQ("<EAGAIN>", recv_text(*p.b, 100));
  EXPECT_EQ(0, p.b->unread_bytes());
  EXPECT_EQ(State::kSwitching, p.b->state());
}

TEST(ForgedStream, ATokenThatWasNotAskedForBreaksTheConnection) {
  Forged p(Role::kAccept);
  EXPECT_EQ(6, send_text(*p.a, "unread"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  p.say(ControlType::kSwitch, 6);
  p.b->service();  // waits for the program to read
  std::uint8_t token[kTokenBytes];
  encode_token(p.b->nonce(), token);
  ASSERT_EQ(static_cast<ssize_t>(sizeof token), ::send(p.a_fd, token, sizeof token, MSG_NOSIGNAL));
  ASSERT_TRUE(p.pump_until([&] { return p.b->state() == State::kReset; }));
  EXPECT_EQ(Reason::kBadRequest, p.b->reason());
}

TEST(ForgedStream, TheConnectorsTokenComesFirst) {
  Forged p(Role::kConnect);
  ASSERT_TRUE(p.hears(ControlType::kSwitch));
  p.say(ControlType::kSwitch, 0);
  ASSERT_TRUE(p.pump_until([&] { return p.a->state() == kOnTcp; }));
  EXPECT_EQ(Reason::kBadRequest, p.a->reason());
  EXPECT_EQ(5, send_text(*p.a, "hello"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  EXPECT_EQ("hello", recv_text(*p.b, 100));
}

TEST(ForgedStream, CloseDoesNotWaitForIt) {
  Forged p(Role::kAccept);
  p.say(ControlType::kSwitch, 0);
  ASSERT_TRUE(p.hears(ControlType::kSwitchAck));
  EXPECT_EQ(3, send_text(*p.b, "end"));
  p.b->close_by_program(false);
  ::close(std::exchange(p.b_fd, -1));
  ASSERT_TRUE(readable(p.a_fd, 1000));
  EXPECT_EQ("end", recv_text(*p.a, 100));
  ASSERT_TRUE(readable(p.a_fd, 1000)) << "the end of the stream never came";
  EXPECT_EQ("", recv_text(*p.a, 100));
}

TEST(ForgedStream, ShutdownDoesNotWaitForIt) {
  Forged p(Role::kAccept);
  p.say(ControlType::kSwitch, 0);
  ASSERT_TRUE(p.hears(ControlType::kSwitchAck));
  EXPECT_EQ(0, p.b->shutdown(SHUT_WR));
  ASSERT_TRUE(readable(p.a_fd, 1000)) << "the end of the stream never came";
  EXPECT_EQ("", recv_text(*p.a, 100));
  EXPECT_EQ(4, send_text(*p.a, "more"));
  ASSERT_TRUE(p.pump_until([&] { return recv_text(*p.b, 100) == "more"; }));
}

TEST(ForgedStream, AResetBehindItIsStillReported) {
  Forged p(Role::kAccept);
  EXPECT_EQ(4, send_text(*p.a, "last"));
  ASSERT_TRUE(readable(p.b_fd, 1000));
  EXPECT_EQ("last", recv_text(*p.b, 100));
  p.say(ControlType::kSwitch, 4);
  ASSERT_TRUE(p.hears(ControlType::kSwitchAck));
  p.b->demote_for_good(Reason::kFork, 0);
  const linger cut{1, 0};
  ASSERT_EQ(0, setsockopt(p.a_fd, SOL_SOCKET, SO_LINGER, &cut, sizeof cut));
  ::close(std::exchange(p.a_fd, -1));
  ASSERT_TRUE(p.pump_until([&] { return !p.b->interest().tcp_in; }));
  EXPECT_FALSE(p.b->on_kernel_for_good()) << "the kernel reports an error once, and it was taken";
  EXPECT_EQ("<ECONNRESET>", recv_text(*p.b, 100));
  EXPECT_EQ("", recv_text(*p.b, 100));
  EXPECT_TRUE(p.b->settled());
}

TEST(ForgedStream, LastBytesThatBeginAsAFrameDoesAreDelivered) {
  Forged p(Role::kAccept);
  p.say(ControlType::kSwitch, 0);
  ASSERT_TRUE(p.hears(ControlType::kSwitchAck));
  const std::string first(1, static_cast<char>(p.b->nonce()[0]));
  EXPECT_EQ(1, send_text(*p.a, first));
  EXPECT_EQ(0, p.a->shutdown(SHUT_WR));
  std::string got = "<EAGAIN>";
  ASSERT_TRUE(p.pump_until([&] { return (got = recv_text(*p.b, 100)) != "<EAGAIN>"; }));
  EXPECT_EQ(first, got);
  EXPECT_EQ("", recv_text(*p.b, 100));
}

// A peer that holds both the channel and the connection, and asks for an answer when the kernel
// has no room for it.
TEST(ForgedStream, NothingOvertakesTheAnswerToAResume) {
  Forged p(Role::kAccept);
  for (const int fd : {p.a_fd, p.b_fd}) {
    const int small = 4608;
    ASSERT_EQ(0, setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small));
    ASSERT_EQ(0, setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small));
  }
  std::string sent;
  int refused = 0;
  const auto fill = [&] {
    return p.pump_until([&] {
      ssize_t n = send_text(*p.b, std::string(1000, '.'));
      if (n < 0) n = send_text(*p.b, ".");
      if (n > 0) sent.append(static_cast<std::size_t>(n), '.');
      refused = n > 0 ? 0 : refused + 1;
      return refused > 50;
    });
  };
  p.say(ControlType::kSwitch, 0);
  ASSERT_TRUE(p.hears(ControlType::kSwitchAck));
  ASSERT_TRUE(fill());
  std::uint8_t token[kTokenBytes];
  encode_token(p.b->nonce(), token);
  ASSERT_EQ(ssize_t{sizeof token}, ::send(p.a_fd, token, sizeof token, 0));
  ASSERT_TRUE(p.hears(ControlType::kSwitch));
  p.b->leave_channel(Reason::kTimeout);
  std::uint8_t resume[kResumeBytes];
  encode_resume(p.b->nonce(), ResumeFrame{0, Reason::kTimeout, true}, resume);
  ASSERT_EQ(ssize_t{sizeof resume}, ::send(p.a_fd, resume, sizeof resume, 0));
  ASSERT_TRUE(p.pump_until([&] { return !p.b->interest().tcp_in; }));
  ASSERT_TRUE(p.b->interest().tcp_out) << "the kernel had room after all";
  std::string got;
  ASSERT_TRUE(p.pump_until([&] {
    char piece[512];
    const ssize_t n = ::recv(p.a_fd, piece, sizeof piece, MSG_DONTWAIT);
    if (n > 0) got.append(piece, static_cast<std::size_t>(n));
    if (sent.back() != '!' && send_text(*p.b, "!") == 1) sent += "!";
    return sent.back() == '!' && got.size() >= sent.size() + kResumeBytes;
  })) << got.size() << " of " << sent.size();
  const std::size_t frozen_at = sent.find('!');
  EXPECT_EQ(sent.substr(0, frozen_at), got.substr(0, frozen_at));
  EXPECT_EQ(sent.substr(frozen_at), got.substr(frozen_at + kResumeBytes));
}

}  // namespace
}  // namespace ringroad::test
