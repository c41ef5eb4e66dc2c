// Several processes, and too few descriptors.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "tests/core/open_descriptors.h"
#include "tests/core/shm_node.h"
#include "tests/core/wake_ups.h"

namespace ringroad::shm_test {
namespace {

// ---- Scarcity

class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit now{limit, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &now), 0);
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_;
};

TEST(ShmTransportScarcity, SaysThatDescriptorsAreOutAtEveryStepOfAConnector) {
  Node client, host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const int before = open_descriptors();
  for (const std::size_t spare : {0u, 1u, 2u}) {
    std::vector<int> filler;
    {
      DescriptorLimit limit(1024);
      for (int fd; (fd = ::dup(STDIN_FILENO)) >= 0;) filler.push_back(fd);
      for (std::size_t i = 0; i < spare; ++i) {
        sys::close_quietly(filler.back());
        filler.pop_back();
      }
      client.connect(server());
    }
    for (const int fd : filler) sys::close_quietly(fd);
    ASSERT_EQ(client.agent.refused.size(), 1u) << spare;
    EXPECT_EQ(client.agent.refused.back().reason, Reason::kNoDescriptors) << spare;
    client.agent.refused.clear();
    host.transport->dispatch();
    EXPECT_EQ(open_descriptors(), before) << spare;
  }
}

TEST(ShmTransportScarcity, AcceptsAgainWhenDescriptorsComeBack) {
  Node client, host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  client.connect(server());
  {
    DescriptorLimit limit(3);
    host.transport->dispatch();
    pollfd fd{host.transport->event_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&fd, 1, 0), 0) << "it must not spin";
  }
  ASSERT_TRUE(run_until({client.transport.get(), host.transport.get()}, [&] {
    return client.agent.has_outcome() && host.agent.has_outcome();
  }));
  EXPECT_EQ(client.agent.channels.size(), 1u);
}

// ---- Two processes

// In the child: connects as user `uid`, answers each byte with the next until it is told to stop.
[[noreturn]] void echo_child(uid_t uid) {
  owner = geteuid();
  if (uid != 0 && (setgid(uid) != 0 || setuid(uid) != 0)) _exit(10);
  Node client;
  client.connect(server());
  if (!run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); })) _exit(11);
  if (client.agent.channels.empty()) _exit(12);
  Channel& channel = client.agent.channel();
  WakeUps wake_ups(channel);
  for (;;) {
    channel.progress();
    const Channel::View view = channel.rx_view();
    if (view.size > 0) {
      const std::uint8_t value = static_cast<std::uint8_t>(view.data[0]);
      channel.consume(1);
      if (value == 255) break;
      channel.tx_view().data[0] = std::byte{static_cast<std::uint8_t>(value + 1)};
      channel.commit(1);
      continue;
    }
    if (!channel.arm()) continue;
    if (!wake_ups.told(kHungMs)) _exit(13);
    channel.drain();
  }
  client.agent.channels.clear();
  _exit(0);
}

bool wait_for_byte(Channel& channel, WakeUps& wake_ups) {
  for (;;) {
    channel.progress();
    if (channel.rx_view().size > 0) return true;
    if (channel.failed()) return false;
    if (!channel.arm()) continue;
    if (!wake_ups.told(kHungMs)) return false;
    channel.drain();
  }
}

std::string kind_of(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  char target[64] = {};
  return readlink(path.c_str(), target, sizeof target - 1) < 0 ? std::string() : target;
}

void talk_with_child(uid_t uid, const char* expected_wait_fd) {
  Node host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const pid_t child = fork();
  if (child == 0) echo_child(uid);
  const uid_t before = std::exchange(owner, uid);
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return host.agent.has_outcome(); }));
  owner = before;
  ASSERT_EQ(host.agent.channels.size(), 1u);
  Channel& channel = host.agent.channel();
  WakeUps wake_ups(channel);
  EXPECT_EQ(kind_of(channel.wait_fd()), expected_wait_fd);
  for (int i = 0; i < 2000; ++i) {
    channel.tx_view().data[0] = std::byte{static_cast<std::uint8_t>(i % 100)};
    channel.commit(1);
    ASSERT_TRUE(wait_for_byte(channel, wake_ups));
    ASSERT_EQ(channel.rx_view().data[0], std::byte{static_cast<std::uint8_t>(i % 100 + 1)});
    channel.consume(1);
  }
  channel.tx_view().data[0] = std::byte{255};
  channel.commit(1);
  EXPECT_FALSE(wait_for_byte(channel, wake_ups));
  EXPECT_EQ(channel.failure(), Reason::kPeerGone);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ShmTransportProcesses, ProcessesOfOneUserTalkAndWakeEachOtherByEventfd) {
  talk_with_child(0, "anon_inode:[eventfd]");
}

TEST(ShmTransportProcesses, ProcessesOfTwoUsersTalkAndShareNoEventfd) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  talk_with_child(12'345, "anon_inode:[eventpoll]");
}

TEST(ShmTransportProcesses, KeepsWhatAKilledPeerHadSent) {
  Node host;
  host.accept_everything();
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const pid_t child = fork();
  if (child == 0) {
    Node client;
    client.connect(server());
    run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); });
    Channel& channel = client.agent.channel();
    std::memcpy(channel.tx_view().data, "last words", 10);
    channel.commit(10);
    kill(sys::getpid(), SIGKILL);
    _exit(1);
  }
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return host.agent.has_outcome(); }));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  Channel& channel = host.agent.channel();
  channel.progress();
  ASSERT_EQ(channel.rx_view().size, 10u);
  EXPECT_EQ(std::memcmp(channel.rx_view().data, "last words", 10), 0);
  const std::vector<std::byte> more(channel.tx_view().size);
  channel.commit(more.size());
  EXPECT_FALSE(channel.failed()) << "TCP tells; the channel cannot";
}

TEST(ShmTransportProcesses, ReportsARequestWhoseProcessIsKilled) {
  Node host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  const pid_t child = fork();
  if (child == 0) {
    Node client;
    client.connect(server());
    ::pause();
    _exit(0);
  }
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return !host.agent.requests.empty(); }));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return host.agent.has_outcome(); }));
  EXPECT_EQ(host.agent.refused.back().reason, Reason::kPeerGone);
}

// A forked child holds a copy of every descriptor: that must not keep the name or a connection up.
TEST(ShmTransportProcesses, AForkedChildDoesNotAnswerForItsParent) {
  Node client, host;
  ASSERT_EQ(host.transport->listen(server()), Reason::kNone);
  client.connect(server());
  ASSERT_TRUE(run_until({host.transport.get()}, [&] { return !host.agent.requests.empty(); }));
  const pid_t child = fork();
  if (child == 0) {
    ::pause();
    _exit(0);
  }
  host.transport->refuse(host.agent.request_ids.back(), Reason::kPolicy);
  host.transport->unlisten(server());
  EXPECT_TRUE(run_until({client.transport.get()}, [&] { return client.agent.has_outcome(); }));
  client.agent.refused.clear();
  client.connect(server());
  ASSERT_EQ(client.agent.refused.size(), 1u);
  EXPECT_EQ(client.agent.refused.back().reason, Reason::kPeerHasNoRingroad);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace ringroad::shm_test
