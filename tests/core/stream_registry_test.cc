// Which streams there are, and which of them a peer's request means.
#include "rsocket-core/agent/stream_registry.h"

#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <vector>

#include "tests/core/stream_pair.h"

namespace ringroad::test {
namespace {

class StreamRegistryTest : public testing::Test {
 protected:
  std::vector<std::uint64_t> ids() {
    std::vector<std::uint64_t> all;
    registry_.each([&](const AgentStreamPtr& stream) {
      all.push_back(stream->id());
      return true;
    });
    return all;
  }

  std::deque<StreamPair> pairs_;
  StreamRegistry registry_;
};

TEST_F(StreamRegistryTest, AnAcceptedStreamIsFoundByItsAddressesUntilTheProgramClosesIt) {
  StreamPair& pair = pairs_.emplace_back();
  EXPECT_TRUE(registry_.empty());
  registry_.enter(pair.a);
  registry_.enter(pair.b);
  EXPECT_EQ(registry_.accepted(pair.b->tuple()), pair.b);
  EXPECT_EQ(registry_.accepted(pair.a->tuple()), nullptr) << "nobody asks for one that connected";
  registry_.leave(*pair.b, false);
  EXPECT_EQ(registry_.accepted(pair.b->tuple()), nullptr);
  EXPECT_EQ(ids().size(), 2U) << "it has an end to come to";
  registry_.forget(pair.b->id());
  registry_.leave(*pair.a, true);
  EXPECT_TRUE(registry_.empty());
}

TEST_F(StreamRegistryTest, AStreamThatComesAfterItsRequestIsToldOf) {
  StreamPair& pair = pairs_.emplace_back();
  EXPECT_FALSE(registry_.enter(pair.b));
  StreamPair& late = pairs_.emplace_back();
  EXPECT_EQ(registry_.accepted(late.b->tuple()), nullptr);
  EXPECT_FALSE(registry_.enter(late.a)) << "requests are for accepted ones";
  EXPECT_TRUE(registry_.enter(late.b));
  registry_.set_requests_wait(false);
  EXPECT_FALSE(registry_.enter(pairs_.emplace_back().b));
}

TEST_F(StreamRegistryTest, AnOlderStreamWithTheSameAddressesTakesNothingFromTheNewerOne) {
  StreamPair& pair = pairs_.emplace_back();
  const auto newer = std::make_shared<AgentStream>(&pair.host, nullptr, 1'000'000, pair.b_fd,
                                              Role::kAccept, pair.b->tuple(), StreamConfig{}, true);
  registry_.enter(pair.b);
  registry_.enter(newer);
  registry_.leave(*pair.b, true);
  EXPECT_EQ(registry_.accepted(newer->tuple()), newer);
}

TEST_F(StreamRegistryTest, AStreamIsFromTheListenersAtItsPort) {
  StreamPair& pair = pairs_.emplace_back();
  const Endpoint own = pair.b->tuple().local;
  Endpoint any;
  any.port = own.port;
  Endpoint other = own;
  ++other.port;
  EXPECT_FALSE(registry_.has_accepted_at(own));
  registry_.enter(pair.a);
  EXPECT_FALSE(registry_.has_accepted_at(pair.a->tuple().local)) << "it has connected";
  registry_.enter(pair.b);
  EXPECT_TRUE(registry_.has_accepted_at(own));
  EXPECT_TRUE(registry_.has_accepted_at(any));
  EXPECT_FALSE(registry_.has_accepted_at(other));
}

TEST_F(StreamRegistryTest, EachGoesThroughThoseThatThereAreOldestFirst) {
  std::vector<std::uint64_t> expected;
  for (int i = 0; i < 3; ++i) {
    StreamPair& pair = pairs_.emplace_back();
    registry_.enter(pair.a);
    expected.push_back(pair.a->id());
  }
  EXPECT_EQ(ids(), expected);
  std::vector<std::uint64_t> seen;
  registry_.each([&](const AgentStreamPtr& stream) {
    seen.push_back(stream->id());
    if (seen.size() == 1) registry_.enter(pairs_.emplace_back().a);  // no lock is held
    return seen.size() < 10;
  });
  EXPECT_EQ(seen, expected) << "not those that come meanwhile";
  seen.clear();
  registry_.each([&](const AgentStreamPtr& stream) {
    seen.push_back(stream->id());
    return false;
  });
  EXPECT_EQ(seen.size(), 1U);
}

TEST_F(StreamRegistryTest, TheChildOfAForkBeginsWithoutStreams) {
  StreamPair& pair = pairs_.emplace_back();
  registry_.enter(pair.b);
  registry_.accepted(pair.b->tuple());
  registry_.before_fork();
  const pid_t child = fork();
  if (child == 0) {
    registry_.after_fork_child();
    signals::end();  // the stretch of the lock
    const bool anew = registry_.empty() && !registry_.requests_wait() &&
                      registry_.accepted(pair.b->tuple()) == nullptr;
    _exit(anew ? 0 : 1);
  }
  registry_.after_fork_parent();
  ASSERT_GT(child, 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(registry_.empty());
  EXPECT_TRUE(registry_.requests_wait());
}

}  // namespace
}  // namespace ringroad::test
