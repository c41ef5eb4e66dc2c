// Streams whose descriptor another process has, or had. The other process is another number here.
#include <gtest/gtest.h>

#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

class SharingHost final : public StreamHost {
 public:
  void attend(Stream&) noexcept override {}
  void start_promotion(Stream&) noexcept override { ++asked; }
  void unwatch(Stream&, int) noexcept override {}
  bool holds_alone(const Stream&) noexcept override { return alone; }
  bool alone = false;
  int asked = 0;
};

// A child's end of an accepted connection, and the peer's socket.
struct Inherited {
  Inherited() {
    std::tie(peer, fd) = tcp_pair();
    FourTuple tuple;
    Endpoint::local_of(fd, tuple.local);
    Endpoint::peer_of(fd, tuple.remote);
    StreamConfig config;
    config.via_shm = true;
    config.ring_bytes = StreamPair::kRing;
    stream = std::make_shared<AgentStream>(&host, nullptr, 1, fd, Role::kAccept, tuple, config, true);
  }
  ~Inherited() {
    stream.reset();
    close(peer);
    close(fd);
  }
  void peer_says(const std::string& text) {
    EXPECT_EQ(::send(peer, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    EXPECT_TRUE(readable(fd, 1000));
  }

  SharingHost host;
  int fd = -1;
  int peer = -1;
  AgentStreamPtr stream;
};

TEST(SharedStream, StaysOnTcpWhileAnotherProcessHasIt) {
  Inherited p;
  p.stream->begin_shared(1);
  p.peer_says("hello");
  EXPECT_EQ(recv_text(*p.stream, 100), "hello");
  EXPECT_EQ(p.stream->may_promote(), Reason::kFork);
  p.host.alone = true;
  EXPECT_EQ(p.stream->may_promote(), Reason::kNone);
  EXPECT_FALSE(p.stream->shared());
}

TEST(SharedStream, ShowsBySomethingThatItIsUsedThroughTheLibrary) {
  Inherited p;
  p.stream->begin_shared(1);
  p.host.alone = true;
  EXPECT_TRUE(p.stream->awaits_use());
  EXPECT_EQ(p.stream->may_promote(), Reason::kBusy);
  p.peer_says("hello");
  EXPECT_TRUE(p.stream->awaits_use()) << "nobody has read it";
  EXPECT_EQ(recv_text(*p.stream, 100), "hello");
  EXPECT_FALSE(p.stream->awaits_use());
  EXPECT_EQ(p.stream->may_promote(), Reason::kNone);
}

TEST(SharedStream, TakesWhatOthersDidWhileTheyHadItForItsOwn) {
  Inherited p;
  p.stream->begin_shared(1);
  p.peer_says("for another process");
  char buffer[100];
  ASSERT_GT(::recv(p.fd, buffer, sizeof buffer, 0), 0);
  p.host.alone = true;
  EXPECT_EQ(p.stream->may_promote(), Reason::kBusy) << "was it this process?";
  p.peer_says("for this one");
  EXPECT_EQ(recv_text(*p.stream, 100), "for this one");
  EXPECT_EQ(p.stream->may_promote(), Reason::kNone);
}

TEST(SharedStream, NoticesWhatThisProcessDoesPastTheLibrary) {
  Inherited p;
  p.stream->begin_shared(1);
  p.host.alone = true;
  char buffer[100];
  p.peer_says("one");
  ASSERT_GT(::recv(p.fd, buffer, sizeof buffer, 0), 0);
  EXPECT_FALSE(p.stream->awaits_use());
  EXPECT_EQ(p.stream->may_promote(), Reason::kBusy);
  p.peer_says("two");
  ASSERT_GT(::recv(p.fd, buffer, sizeof buffer, 0), 0);
  EXPECT_EQ(p.stream->may_promote(), Reason::kUntrackedIo);
}

TEST(SharedStream, FollowsAFlagThatAnotherProcessSets) {
  Inherited p;
  p.stream->begin_shared(1);
  EXPECT_FALSE(p.stream->nonblocking()) << "the open file says so";
  ASSERT_EQ(fcntl(p.fd, F_SETFL, O_NONBLOCK), 0);
  EXPECT_TRUE(p.stream->nonblocking());
}

TEST(SharedStream, TheParentsIsNotSharedWithItsBytesOnAChannel) {
  StreamPair p;
  p.promote();
  EXPECT_FALSE(p.a->can_be_shared());
  EXPECT_FALSE(p.a->become_shared());
  StreamPair other;
  EXPECT_TRUE(other.a->can_be_shared());
  EXPECT_TRUE(other.a->become_shared());
  EXPECT_EQ(other.a->reason(), Reason::kFork);
}

TEST(SharedStream, AListenerThatSaysForkIsAskedAgainForAsLongAsItTakes) {
  StreamPair p;
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(p.a->promotion_started(p.a_nonce), Reason::kNone) << i;
    p.a->promotion_refused(Reason::kPeerRefused, Reason::kFork);
  }
  EXPECT_FALSE(p.a->on_kernel_for_good());
  // And not before a while has passed, however much is sent meanwhile.
  const int asked = p.host.asked;
  for (int i = 0; i < 1000; ++i) p.a->note_use(1, 1);
  EXPECT_EQ(p.host.asked, asked);
}

}  // namespace
}  // namespace ringroad::test
