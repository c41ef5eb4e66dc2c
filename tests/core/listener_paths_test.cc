// The paths by which an agent answers for the program's listeners, where these change.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "rsocket-core/agent/agent.h"
#include "rsocket-core/net/own_addresses.h"
#include "tests/core/shm_node.h"

namespace ringroad::test {
namespace {

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

sockaddr_un path_at(const std::string& file) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  std::strcpy(out.sun_path, file.c_str());
  return out;
}

// A socket of another process there, which listens until it is closed.
int bind_at(const std::string& file) {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const sockaddr_un name = path_at(file);
  EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  EXPECT_EQ(::listen(fd, 1), 0);
  return fd;
}

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
    // The agent takes its paths away at the same time.
    for (std::error_code said; std::filesystem::exists(host_.directory, said);) {
      std::filesystem::remove_all(host_.directory, said);
    }
  }

  void SetUp() override {
    if (here_ == 0) GTEST_SKIP() << "before Linux 5.14 the kernel names no network namespace";
    std::vector<Address> addresses;
    ASSERT_TRUE(add_ipv4_addresses(addresses));
    if (addresses.empty()) GTEST_SKIP() << "no address but loopback";
    own_ = Endpoint(addresses.front(), port_);
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

  // The agent of the test before may still answer at its own.
  static inline std::uint16_t last_port_ = shm_test::test_port();
  const std::uint16_t port_ = ++last_port_;
  const Endpoint any4_ = shm_test::v4(INADDR_ANY, port_);
  const Endpoint any6_ = shm_test::v6(in6addr_any, port_);
  // An agent does not end. So those of the tests are kept, and no leak.
  static inline auto& kept_ = *new std::vector<std::pair<PathsHost*, Agent*>>;
  PathsHost& host_ = *new PathsHost;
  Agent& agent_ = *kept_.emplace_back(&host_, new Agent(host_)).second;
  std::uint64_t here_ = 0;
  Endpoint own_;
  std::vector<Endpoint> open_;
};

TEST_F(ListenerPaths, StayAtTheAddressThatTheProgramIsBoundToInSeveralNamespaces) {
  listen(own_, {.network = here_});
  listen(own_, {.network = here_ + 1});
  EXPECT_TRUE(has_path(own_)) << "this process answers for both";
  EXPECT_FALSE(host_.has_logged("namespace"));
  unlisten_all();
}

TEST_F(ListenerPaths, AreMadeForIPv4WhenASecondListenerTakesItToo) {
  listen(any6_, {.v6_only = true, .network = here_});
  EXPECT_FALSE(has_path(own_));
  listen(any6_, {.network = here_});
  EXPECT_TRUE(has_path(own_));
}

TEST_F(ListenerPaths, AreTakenWhenTheProcessThatHasThemHasLeft) {
  const std::string file = host_.directory + "/" + own_.to_string();
  const int other = bind_at(file);
  listen(own_, {.network = here_});
  EXPECT_TRUE(host_.has_logged("another process answers"));
  ::close(other);
  std::filesystem::remove(file);
  // Before the look that comes each ten seconds.
  const std::int64_t until = sys::now_ns() + 8'000'000'000;
  while (!has_path(own_) && sys::now_ns() < until) ::poll(nullptr, 0, 1);
  EXPECT_TRUE(has_path(own_));
}

TEST_F(ListenerPaths, ThatAnotherProcessHasTakenAndLeftDeadAreMadeAgainAtALook) {
  shm_test::Node host(host_.directory.c_str());
  ASSERT_EQ(host.transport->listen(own_), Reason::kNone);
  ASSERT_EQ(host.transport->listen_by_path(own_, {}), Reason::kNone);
  const std::string file = host_.directory + "/" + own_.to_string();
  std::filesystem::remove(file);
  ::close(bind_at(file));
  const timespec long_ago[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), long_ago, 0), 0);
  host.transport->look_at_paths();
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  EXPECT_EQ(shm_directory::connect(fd, path_at(file)), 0);
  ::close(fd);
}

TEST(ListenerPathNames, AreOfAWholePathThatASocketAddressHasRoomFor) {
  sockaddr_un name;
  make_shm_name(ShmName::kExact, shm_test::v4(0x0a010203, 3306), name);
  const std::string file = "/10.1.2.3:3306";
  sockaddr_un out{};
  EXPECT_FALSE(shm_directory::path_of("tmp", name, out)) << "the program may change its folder";
  const std::string longest = "/" + std::string(sizeof out.sun_path - 1 - file.size() - 1, 'x');
  ASSERT_TRUE(shm_directory::path_of(longest.c_str(), name, out));
  EXPECT_EQ(out.sun_path, longest + file);
  EXPECT_FALSE(shm_directory::path_of((longest + "x").c_str(), name, out)) << "no end of the string";
}

}  // namespace
}  // namespace ringroad::test
