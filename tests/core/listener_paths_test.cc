// The paths by which an agent answers for the program's listeners, where these change.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "rsocket-core/agent/agent.h"
#include "rsocket-core/net/own_addresses.h"
#include "tests/core/shm_node.h"

namespace ringroad::test {
namespace {

using shm_test::test_port;

class PathsHost final : public AgentHost {
 public:
  const char* rendezvous_directory() noexcept override { return directory.c_str(); }
  bool wants_log() noexcept override { return true; }
  void log(const char* line) noexcept override {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(line);
  }
  bool has_logged(const std::string& words) {
    const std::lock_guard lock(mutex_);
    for (const std::string& line : lines_) {
      if (line.find(words) != std::string::npos) return true;
    }
    return false;
  }

  std::string directory;

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

// An agent lives as long as the process, so each test leaves one.
class ListenerPaths : public testing::Test {
 protected:
  ListenerPaths() {
    char name[] = "/tmp/ringroad-paths-XXXXXX";
    host_.directory = mkdtemp(name);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    here_ = network_of(fd);
    ::close(fd);
  }
  ~ListenerPaths() override {
    for (const Endpoint& at : open_) agent_.unlisten(at);
    std::filesystem::remove_all(host_.directory);
  }

  void SetUp() override {
    if (here_ == 0) GTEST_SKIP() << "before Linux 5.14 the kernel names no network namespace";
    std::vector<Address> addresses;
    ASSERT_TRUE(add_ipv4_addresses(addresses));
    if (addresses.empty()) GTEST_SKIP() << "no address but loopback";
    own_ = Endpoint(addresses.front(), test_port());
  }

  // Returns when it is answered for.
  void listen(const Endpoint& at, const ListenerFacts& facts) {
    agent_.listen(at, true, false, true, facts);
    open_.push_back(at);
  }
  void unlisten_all() {
    for (const Endpoint& at : open_) agent_.unlisten(at);
    open_.clear();
  }
  bool has_path(const Endpoint& at) const {
    return std::filesystem::exists(host_.directory + "/" + at.to_string());
  }

  PathsHost& host_ = *new PathsHost;
  Agent& agent_ = *new Agent(host_);
  std::uint64_t here_ = 0;
  Endpoint own_;
  std::vector<Endpoint> open_;
};

const Endpoint kAny4 = shm_test::v4(INADDR_ANY, test_port());
const Endpoint kAny6 = shm_test::v6(in6addr_any, test_port());

TEST_F(ListenerPaths, GoWithTheSecondNamespaceInWhichTheProgramListensAtEveryAddress) {
  const ListenerFacts here{.network = here_};
  const ListenerFacts there{.network = here_ + 1};
  for (const auto& [first, second] : {std::pair(here, there), std::pair(there, here)}) {
    listen(kAny4, first);
    EXPECT_EQ(has_path(own_), first == here);
    listen(kAny4, first);
    EXPECT_EQ(has_path(own_), first == here) << "twice in one namespace";
    listen(kAny4, second);
    EXPECT_FALSE(has_path(own_));
    EXPECT_TRUE(host_.has_logged("listens there in several network namespaces"));
    listen(kAny4, first);
    EXPECT_FALSE(has_path(own_));
    unlisten_all();
  }
  listen(kAny4, here);
  EXPECT_TRUE(has_path(own_)) << "all of them were closed";
}

TEST_F(ListenerPaths, StayAtTheAddressThatTheProgramIsBoundToInSeveralNamespaces) {
  listen(own_, {.network = here_});
  listen(own_, {.network = here_ + 1});
  EXPECT_TRUE(has_path(own_)) << "this process answers for both";
  EXPECT_FALSE(host_.has_logged("namespace"));
  unlisten_all();
}

TEST_F(ListenerPaths, AreMadeForIPv4WhenASecondListenerTakesItToo) {
  listen(kAny6, {.v6_only = true, .network = here_});
  EXPECT_FALSE(has_path(own_));
  listen(kAny6, {.network = here_});
  EXPECT_TRUE(has_path(own_));
}

}  // namespace
}  // namespace ringroad::test
