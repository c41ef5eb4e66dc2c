// Peers that die, and processes with little memory to lock: the other end is this program again,
// started as `verbs_channel_test --peer WHAT [NUMBER]`.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "tests/verbs/verbs_test.h"

extern char** environ;

namespace ringroad::verbs_test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kPeerBytes = 50'000;
constexpr std::uint32_t kLockedRing = 256 * 1024;

// ---- the peer's side

std::unique_ptr<Channel> peer_connect(Side& side, std::uint32_t ring, Reason& why) {
  const PromotionId id = side.connect(connect_params(ring));
  serve_until({&side}, [&] { return side.outcome(id).ended; });
  why = side.outcome(id).reason;
  return std::move(side.outcome(id).channel);
}

void peer_send_all(Channel& channel) {
  std::size_t sent = 0;
  poll_until({&channel}, [&] {
    sent += write_some(channel, pattern(sent, std::min<std::size_t>(999, kPeerBytes - sent)));
    return sent == kPeerBytes && channel.delivered();
  });
}

// As a service without CAP_IPC_LOCK would be: root's capabilities lift the limit.
bool limit_locked_memory(std::size_t bytes) {
  const rlimit limit{bytes, bytes};
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct caps[2];
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || syscall(SYS_capget, &header, caps) != 0) return false;
  caps[0].effective &= ~(1U << CAP_IPC_LOCK);
  caps[0].permitted &= ~(1U << CAP_IPC_LOCK);
  return syscall(SYS_capset, &header, caps) == 0;
}

int run_peer(const std::string& what, std::size_t number) {
  if (what == "limited" && !limit_locked_memory(number)) return 3;
  Side side;
  if (!side.loaded()) {
    std::printf("%s\n", reason_name(side.load_failure()));
    return 2;
  }
  Reason why = Reason::kNone;
  auto channel = peer_connect(side, what == "limited" ? kLockedRing : kRing, why);
  if (channel != nullptr) peer_send_all(*channel);
  std::printf("%s\n", reason_name(why));
  std::fflush(stdout);
  if (what == "stay") pause();
  if (what == "exit") _exit(0);
  return 0;
}

// ---- this side

class VerbsProcessTest : public VerbsTest {
 protected:
  void TearDown() override {
    if (pid_ > 0) end_peer(SIGKILL);
    if (output_ != nullptr) std::fclose(output_);
  }

  void spawn_peer(const std::string& what, std::size_t number) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::string argument = std::to_string(number);
    std::string name = "verbs_channel_test", flag = "--peer", kind = what;
    char* argv[] = {name.data(), flag.data(), kind.data(), argument.data(), nullptr};
    ASSERT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    output_ = fdopen(ends[0], "r");
  }

  void start_peer(const std::string& what, std::size_t number = 0) {
    ASSERT_NO_FATAL_FAILURE(spawn_peer(what, number));
    ASSERT_TRUE(serve_until({server_.get()}, [&] {
      return server_->requests > 0 && server_->outcome(server_->last_request).ended;
    })) << "no channel from the peer";
    b_ = std::move(server_->outcome(server_->last_request).channel);
  }

  // The line by which the peer says that it is done.
  std::string peer_line() {
    char line[64] = {};
    if (std::fgets(line, sizeof line, output_) == nullptr) return "nothing";
    line[std::strcspn(line, "\n")] = '\0';
    return line;
  }

  void end_peer(int signal) {
    if (signal != 0) kill(pid_, signal);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  pid_t pid_ = 0;
  std::FILE* output_ = nullptr;
};

TEST_F(VerbsProcessTest, APeerThatIsKilledIsNoticedAndItsBytesCanStillBeRead) {
  ASSERT_NO_FATAL_FAILURE(listen());
  ASSERT_NO_FATAL_FAILURE(start_peer("stay"));
  ASSERT_EQ(peer_line(), "none");
  end_peer(SIGKILL);
  EXPECT_TRUE(serve_until({server_.get()}, [&] { return b_->failed(); }));
  EXPECT_EQ(b_->failure(), Reason::kPeerGone);
  EXPECT_EQ(read_all(*b_), pattern(0, kPeerBytes));
  EXPECT_EQ(server_->outcome(server_->last_request).channel_events, 1U);
}

TEST_F(VerbsProcessTest, WhatWasDeliveredOutlivesItsSender) {
  ASSERT_NO_FATAL_FAILURE(listen());
  ASSERT_NO_FATAL_FAILURE(start_peer("exit"));
  ASSERT_EQ(peer_line(), "none");
  end_peer(0);
  b_->progress();
  EXPECT_EQ(read_all(*b_), pattern(0, kPeerBytes));
}

TEST_F(VerbsProcessTest, AStoppedPeerIsNotTakenForADeadOne) {
  ASSERT_NO_FATAL_FAILURE(listen());
  ASSERT_NO_FATAL_FAILURE(start_peer("stay"));
  ASSERT_EQ(peer_line(), "none");
  kill(pid_, SIGSTOP);
  std::size_t sent = 0;
  while (const std::size_t n = write_some(*b_, pattern(sent, 1000))) sent += n;
  // Its device acknowledges what finds a receive; the rest waits for credit, which is no failure.
  EXPECT_FALSE(poll_until({b_.get()}, [&] { return b_->failed(); }, 1500ms));
  EXPECT_LT(b_->tx_posted(), kRing + 1);
}

TEST_F(VerbsProcessTest, TooLittleLockableMemoryIsNamedAsTheReason) {
  ASSERT_NO_FATAL_FAILURE(listen());
  ASSERT_NO_FATAL_FAILURE(spawn_peer("limited", 64 * 1024));
  EXPECT_EQ(peer_line(), "memlock");
  EXPECT_EQ(server_->requests, 0U) << "the peer is not even asked";
}

TEST_F(VerbsProcessTest, TwoRingsAnd64KiBOfLockableMemoryAreEnough) {
  ASSERT_NO_FATAL_FAILURE(listen());
  ASSERT_NO_FATAL_FAILURE(start_peer("limited", 2 * kLockedRing + 64 * 1024));
  EXPECT_EQ(peer_line(), "none");
  b_->progress();
  EXPECT_EQ(read_all(*b_), pattern(0, kPeerBytes));
}

}  // namespace

bool is_peer(int argc, char** argv) { return argc == 4 && std::string_view(argv[1]) == "--peer"; }
int peer_main(char** argv) { return run_peer(argv[2], std::strtoul(argv[3], nullptr, 10)); }

}  // namespace ringroad::verbs_test

int main(int argc, char** argv) {
  if (ringroad::verbs_test::is_peer(argc, argv)) return ringroad::verbs_test::peer_main(argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
