// What happens when the network or the device goes. Takes both down for good, so each test runs in
// a virtual machine of its own and only when RINGROAD_BREAK_LINK=1 says that it may.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/verbs/verbs_test.h"

namespace ringroad::verbs_test {
namespace {

using namespace std::chrono_literals;

class VerbsLinkTest : public VerbsTest {
 protected:
  void SetUp() override {
    if (std::getenv("RINGROAD_BREAK_LINK") == nullptr) {
      GTEST_SKIP() << "would cut the network: RINGROAD_BREAK_LINK=1 allows it";
    }
    VerbsTest::SetUp();
  }
};

TEST_F(VerbsLinkTest, AnUnreachablePeerIsGivenUpWithinSecondsAndItsBytesAreKept) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  write_some(*b_, pattern(0, 5000));
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return b_->delivered(); }));
  // As when the peer's host lost power: the frames go to a station that does not exist.
  const std::string misdirect = "ip neigh replace " + server_address() +
                                " lladdr 02:00:00:00:00:99 dev v0 nud permanent";
  ASSERT_EQ(std::system(misdirect.c_str()), 0);
  const auto start = std::chrono::steady_clock::now();
  write_some(*a_, pattern(0, 1000));
  EXPECT_TRUE(poll_until({a_.get()}, [&] { return a_->failed(); }));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("given up after %.2f s\n", took.count());
  EXPECT_GT(took, 100ms) << "something else failed than the retries";
  EXPECT_LT(took, 2s);
  EXPECT_EQ(a_->failure(), Reason::kQpError);
  EXPECT_EQ(read_all(*a_), pattern(0, 5000));
  const Channel::View view = a_->tx_replay(0);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(view.data), view.size), pattern(0, 1000));
}

TEST_F(VerbsLinkTest, ADeviceThatIsRemovedEndsItsChannels) {
  ASSERT_NO_FATAL_FAILURE(make_channels());
  write_some(*b_, pattern(0, 5000));
  ASSERT_TRUE(poll_until({a_.get(), b_.get()}, [&] { return b_->delivered(); }));
  // It returns when nobody uses the device any more, which needs what follows here.
  std::thread removal([] { EXPECT_EQ(std::system("rdma link delete rxe0"), 0); });
  EXPECT_TRUE(serve_until({client_.get()}, [&] { return a_->failed(); }));
  EXPECT_EQ(client_->outcome(id_).channel_events, 1U);
  EXPECT_EQ(read_all(*a_), pattern(0, 5000));
  a_.reset();
  client_.reset();
  removal.detach();
}

}  // namespace
}  // namespace ringroad::verbs_test
