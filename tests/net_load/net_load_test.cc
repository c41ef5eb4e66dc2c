#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>
#include <system_error>
#include <thread>

#include "integration/bench/net_load/address.h"
#include "integration/bench/net_load/bytes.h"
#include "integration/bench/net_load/exchange.h"
#include "integration/bench/net_load/run.h"
#include "integration/bench/net_load/samples.h"

namespace net_load {
namespace {

TEST(SamplesTest, PercentilesAreOfTheSamplesThemselves) {
  Samples samples;
  for (std::int64_t i = 1000; i > 0; --i) samples.add(i * 1000);
  samples.sort();
  EXPECT_EQ(samples.percentile_us(0), 1);
  EXPECT_EQ(samples.percentile_us(50), 500);
  EXPECT_EQ(samples.percentile_us(99), 990);
  EXPECT_EQ(samples.percentile_us(99.9), 999);
  EXPECT_EQ(samples.percentile_us(100), 1000);
  EXPECT_EQ(samples.mean_us(), 500.5);
}

TEST(SamplesTest, OneIsEveryPercentile) {
  Samples samples;
  samples.add(7000);
  samples.sort();
  for (const double percent : {0.0, 50.0, 99.9, 100.0})
    EXPECT_EQ(samples.percentile_us(percent), 7);
}

TEST(AddressTest, FamiliesAreToldByTheirForm) {
  const Address v4 = parse_address("10.9.1.1:7000");
  const auto* at4 = reinterpret_cast<const sockaddr_in*>(v4.get());
  EXPECT_EQ(v4.family(), AF_INET);
  EXPECT_EQ(ntohs(at4->sin_port), 7000);
  EXPECT_EQ(ntohl(at4->sin_addr.s_addr), 0x0A090101U);
  const Address v6 = parse_address("[fd00::1]:65535");
  EXPECT_EQ(v6.family(), AF_INET6);
  EXPECT_EQ(ntohs(reinterpret_cast<const sockaddr_in6*>(v6.get())->sin6_port), 65535);
  EXPECT_EQ(parse_address("unix:/tmp/socket").family(), AF_UNIX);
}

TEST(AddressTest, NothingElseIsOne) {
  for (const char* text : {"", "10.9.1.1", "10.9.1.1:", "10.9.1.1:65536", "10.9.1.1:7000x",
                           "db1:7000", "fd00::1:7000", "[10.9.1.1]:7000", "[]:7000", "unix:"}) {
    EXPECT_THROW(parse_address(text), std::invalid_argument) << text;
  }
  EXPECT_THROW(parse_address("unix:/" + std::string(200, 'x')), std::invalid_argument);
}

TEST(RunTest, WordsAreARun) {
  const net_load::Run run = parse_run("pingpong epoll 64 1000");
  EXPECT_EQ(run.kind, Kind::kPingpong);
  EXPECT_EQ(run.wait, Wait::kEpoll);
  EXPECT_EQ(run.size, 64U);
  EXPECT_EQ(run.count, 1000U);
  EXPECT_EQ(parse_run("stream block 1 1").kind, Kind::kStream);
  EXPECT_EQ(parse_run("queries block 1 1").kind, Kind::kQueries);
}

TEST(RunTest, OtherWordsAreNot) {
  for (const char* text :
       {"", "pingpong block 64", "pingpong block 0 1", "pingpong block 64 0", "pingpong spin 64 1",
        "ping block 64 1", "stream epoll 64 1", "pingpong block 64 1 more"}) {
    EXPECT_THROW(parse_run(text), std::invalid_argument) << text;
  }
}

TEST(UsageTest, IsToldAsItIs) {
  const Usage told = parse_usage(usage_line({1234567.5, 89}));
  EXPECT_EQ(told.cpu_us, 1234567.5);
  EXPECT_EQ(told.switches, 89U);
  EXPECT_THROW(parse_usage("ready"), std::runtime_error);
}

class ExchangeTest : public testing::TestWithParam<Wait> {
 protected:
  void SetUp() override {
    for (int i = 0; i < 3; ++i) {
      int pair[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
      near_.push_back(pair[0]);
      far_.push_back(pair[1]);
    }
  }
  void TearDown() override {
    for (const int fd : near_) close(fd);
    for (const int fd : far_) close(fd);
  }

  std::vector<int> near_, far_;
};

TEST_P(ExchangeTest, EveryMessageOfEveryConnectionIsAnsweredOnce) {
  // Larger than what a socket takes at once.
  for (const std::size_t size : {std::size_t{1}, std::size_t{1} << 20}) {
    net_load::Run run;
    run.wait = GetParam();
    run.size = size;
    run.count = 20;
    std::jthread far([&] { exchange(far_, run, End::kAnswers); });
    EXPECT_EQ(exchange(near_, run, End::kAsks).size(), 3U * 20);
    far.join();
    for (const int fd : near_) {
      char left;
      EXPECT_EQ(recv(fd, &left, 1, MSG_DONTWAIT), -1) << "nothing is left over";
    }
  }
}

TEST_P(ExchangeTest, APeerThatIsGoneIsAnErrorAndNoHang) {
  net_load::Run run;
  run.wait = GetParam();
  run.size = 64;
  run.count = 1'000'000;
  std::jthread far([&] {
    char message[64];
    receive_all(far_[1], message, sizeof message);
    shutdown(far_[1], SHUT_RDWR);
  });
  EXPECT_THROW(exchange(near_, run, End::kAsks), std::system_error);
}

INSTANTIATE_TEST_SUITE_P(Waits, ExchangeTest, testing::Values(Wait::kBlock, Wait::kEpoll));

}  // namespace
}  // namespace net_load
