// The table of a family of processes. Members are real processes: their life is the kernel's to tell.
#include "rsocket-core/process/process_group.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace ringroad {
namespace {

Endpoint at(std::uint16_t port, std::uint32_t address = INADDR_LOOPBACK) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(port);
  in.sin_addr.s_addr = htonl(address);
  Endpoint out;
  EXPECT_TRUE(Endpoint::from_sockaddr(reinterpret_cast<const sockaddr*>(&in), sizeof in, out));
  return out;
}

bool try_become_responder(ProcessGroup& family, const Endpoint& listener, Carrier carrier = Carrier::kShm) {
  pid_t holder;
  return family.try_become_responder(listener, carrier, holder);
}

FourTuple connection(unsigned n) {
  return {at(3306), at(static_cast<std::uint16_t>(10'000 + n % 50'000), 0x0a000000 + n / 50'000)};
}

// A forked member that does one thing, says so, and lives until it is told or killed.
class Child {
 public:
  Child(ProcessGroup& family, const std::function<bool()>& act, ProcessGroup::Member member) {
    int up[2];
    int down[2];
    if (::pipe2(up, O_CLOEXEC) != 0 || ::pipe2(down, O_CLOEXEC) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      // Our ends of other children's pipes, and this one's.
      ::close(up[0]);
      ::close(down[1]);
      const bool joined = family.join(member) == ProcessGroup::Joined::kYes;
      const char result = joined && act() ? 'y' : 'n';
      char word = 0;
      if (::write(up[1], &result, 1) != 1 || ::read(down[0], &word, 1) < 0) ::_exit(2);
      if (word == 'e') ::execl("/bin/sleep", "sleep", "60", static_cast<char*>(nullptr));
      ::_exit(0);
    }
    ::close(up[1]);
    ::close(down[0]);
    from_ = up[0];
    to_ = down[1];
  }
  Child(ProcessGroup& family, const std::function<bool()>& act) : Child(family, act, family.reserve()) {}
  ~Child() {
    kill();
    ::close(from_);
    ::close(to_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool did_it() {
    char result = 'n';
    return ::read(from_, &result, 1) == 1 && result == 'y';
  }
  void end() {
    if (::write(to_, "q", 1) == 1) wait();
  }
  void become_another_program() { ASSERT_EQ(::write(to_, "e", 1), 1); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    wait();
  }
  void kill_without_reaping() {
    ::kill(pid_, SIGKILL);
    siginfo_t info;
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT), 0);
  }

 private:
  void wait() {
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid_ = -1;
  int from_ = -1;
  int to_ = -1;
};

// What only the kernel decides when.
bool in_time(const std::function<bool()>& condition) {
  for (int i = 0; i < 20'000 && !condition(); ++i) ::usleep(1000);
  return condition();
}

class FamilyTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(family.create()); }
  ProcessGroup::Found find(unsigned n) { return family.find(connection(n), where); }

  ProcessGroup family;
  Rendezvous where;
};

TEST(NoFamilyTest, KnowsNothing) {
  ProcessGroup none;
  Rendezvous where;
  EXPECT_FALSE(none.exists());
  EXPECT_EQ(none.reserve(), 0U);
  EXPECT_EQ(none.enter(connection(1)), 0U);
  EXPECT_EQ(none.find(connection(1), where), ProcessGroup::Found::kNobody);
  EXPECT_FALSE(none.alone(1));
  EXPECT_TRUE(try_become_responder(none, at(1))) << "one that never forked answers for all its listeners";
}

TEST_F(FamilyTest, AMemberThatEntersAConnectionHoldsItAlone) {
  const ProcessGroup::ConnectionId share = family.enter(connection(1));
  ASSERT_NE(share, 0U);
  EXPECT_TRUE(family.alone(share));
  EXPECT_EQ(find(1), ProcessGroup::Found::kSelf);
  EXPECT_EQ(find(2), ProcessGroup::Found::kNobody);
  family.release(share);
  EXPECT_FALSE(family.alone(share));
  EXPECT_EQ(find(1), ProcessGroup::Found::kNobody);
}

TEST_F(FamilyTest, AChildsConnectionIsFoundAtItsRendezvous) {
  Rendezvous published;
  published.token.fill(7);
  published.rdma_port = 4711;
  Child child(family, [&] {
    family.publish(published);
    return family.enter(connection(1)) != 0;
  });
  ASSERT_TRUE(child.did_it());
  EXPECT_EQ(find(1), ProcessGroup::Found::kOther);
  EXPECT_EQ(where.token, published.token);
  EXPECT_EQ(where.rdma_port, 4711);
  child.end();
  EXPECT_EQ(find(1), ProcessGroup::Found::kNobody);
}

TEST_F(FamilyTest, AMemberThatHasPublishedNothingCannotBeAsked) {
  Child child(family, [&] { return family.enter(connection(1)) != 0; });
  ASSERT_TRUE(child.did_it());
  EXPECT_EQ(find(1), ProcessGroup::Found::kOther);
  EXPECT_FALSE(where.has_shm());
  EXPECT_EQ(where.rdma_port, 0);
}

TEST_F(FamilyTest, AForkedConnectionIsSharedUntilOneReleasesIt) {
  const ProcessGroup::ConnectionId share = family.enter(connection(1));
  const ProcessGroup::Member member = family.reserve();
  ASSERT_TRUE(family.add(share, member));
  EXPECT_FALSE(family.alone(share)) << "the child counts before it has come";
  EXPECT_EQ(find(1), ProcessGroup::Found::kSeveral);
  int joined[2];
  ASSERT_EQ(::pipe(joined), 0);
  Child child(
      family,
      [&] {
        const bool shared = !family.alone(share);
        if (::write(joined[1], "j", 1) != 1) return false;
        return shared && in_time([&] { return family.alone(share); });
      },
      member);
  char word;
  ASSERT_EQ(::read(joined[0], &word, 1), 1);
  EXPECT_EQ(find(1), ProcessGroup::Found::kSeveral);
  EXPECT_FALSE(family.alone(share));
  family.release(share);
  EXPECT_TRUE(child.did_it());
  EXPECT_EQ(find(1), ProcessGroup::Found::kOther);
  EXPECT_FALSE(family.alone(share));
  ::close(joined[0]);
  ::close(joined[1]);
}

TEST_F(FamilyTest, TheKilledHoldNothing) {
  const ProcessGroup::ConnectionId share = family.enter(connection(1));
  const ProcessGroup::Member member = family.reserve();
  ASSERT_TRUE(family.add(share, member));
  Child child(family, [&] { return family.enter(connection(2)) != 0; }, member);
  ASSERT_TRUE(child.did_it());
  EXPECT_FALSE(family.alone(share));
  EXPECT_EQ(find(2), ProcessGroup::Found::kOther);
  child.kill_without_reaping();
  EXPECT_TRUE(family.alone(share)) << "a zombie has no descriptors";
  EXPECT_EQ(find(2), ProcessGroup::Found::kNobody);
  EXPECT_EQ(find(1), ProcessGroup::Found::kSelf);
}

TEST_F(FamilyTest, AMemberThatBecomesAnotherProgramHoldsWhatItWasSaidToKeepOnly) {
  const ProcessGroup::ConnectionId closed = family.enter(connection(1));
  const ProcessGroup::ConnectionId kept = family.enter(connection(2));
  const ProcessGroup::Member member = family.reserve();
  ASSERT_TRUE(family.add(closed, member));
  ASSERT_TRUE(family.add(kept, member));
  Child child(
      family,
      [&] {
        family.keep(kept);
        return true;
      },
      member);
  ASSERT_TRUE(child.did_it());
  EXPECT_FALSE(family.alone(closed));
  child.become_another_program();
  EXPECT_TRUE(in_time([&] { return family.alone(closed); }));
  EXPECT_FALSE(family.alone(kept));
  child.kill();
  EXPECT_FALSE(family.alone(kept)) << "nothing says where the descriptor went";
  EXPECT_EQ(find(2), ProcessGroup::Found::kSeveral);
  family.release(kept);
  EXPECT_EQ(find(2), ProcessGroup::Found::kNobody);
}

TEST_F(FamilyTest, AMemberThatDoesNotBecomeAnotherProgramTakesItsWordBackAndNoOthers) {
  const ProcessGroup::ConnectionId share = family.enter(connection(1));
  ASSERT_TRUE(family.keep(share));
  EXPECT_FALSE(family.keep(share)) << "it was said before";
  EXPECT_FALSE(family.alone(share));
  family.keep_no_longer(share);
  EXPECT_TRUE(family.alone(share));
}

TEST_F(FamilyTest, AMemberThatResignsMakesRoomAndCountsNoLonger) {
  Child child(family, [&] {
    const bool entered = family.enter(connection(1)) != 0;
    family.resign();
    return entered && !family.joined();
  });
  ASSERT_TRUE(child.did_it());
  EXPECT_EQ(find(1), ProcessGroup::Found::kNobody);
}

TEST_F(FamilyTest, TheSameAddressesAreANewerConnection) {
  Child child(family, [&] { return family.enter(connection(1)) != 0; });
  ASSERT_TRUE(child.did_it());
  const ProcessGroup::ConnectionId old = family.enter(connection(2));
  const ProcessGroup::ConnectionId share = family.enter(connection(1));
  ASSERT_NE(share, 0U);
  EXPECT_EQ(find(1), ProcessGroup::Found::kSelf);
  const ProcessGroup::ConnectionId newer = family.enter(connection(2));
  EXPECT_NE(newer, old);
  family.release(old);
  EXPECT_TRUE(family.alone(newer)) << "an old name releases nothing";
  EXPECT_FALSE(family.alone(old));
}

TEST_F(FamilyTest, MoreHoldersThanItHasPlacesForAreForEver) {
  const ProcessGroup::ConnectionId share = family.enter(connection(1));
  for (unsigned i = 1; i < ProcessGroup::kMaxHolders; ++i) {
    ASSERT_TRUE(family.add(share, family.reserve()));
  }
  const ProcessGroup::Member last = family.reserve();
  EXPECT_FALSE(family.add(share, last));
  EXPECT_FALSE(family.alone(share));
  EXPECT_EQ(find(1), ProcessGroup::Found::kSeveral);
}

TEST_F(FamilyTest, AddingTwiceIsAddingOnce) {
  const ProcessGroup::ConnectionId share = family.enter(connection(1));
  const ProcessGroup::Member member = family.reserve();
  for (unsigned i = 0; i < 2 * ProcessGroup::kMaxHolders; ++i) ASSERT_TRUE(family.add(share, member));
  Child child(family, [] { return true; }, member);
  ASSERT_TRUE(child.did_it());
  child.end();
  EXPECT_TRUE(family.alone(share));
}

TEST_F(FamilyTest, MembersThatAreGoneMakeRoomForOthers) {
  // Many at once, then all of them dead: twice as many as there is room for.
  std::vector<ProcessGroup::Member> all;
  for (unsigned i = 1; i < ProcessGroup::kMaxMembers - 1; ++i) {
    all.push_back(family.reserve());
    ASSERT_NE(all.back(), 0U) << i;
  }
  EXPECT_EQ(std::set<ProcessGroup::Member>(all.begin(), all.end()).size(), all.size());
  const ProcessGroup::Member last = family.reserve();
  ASSERT_NE(last, 0U);
  EXPECT_EQ(family.reserve(), 0U) << "they may all come yet";
  const ProcessGroup::ConnectionId share = family.enter(connection(1));
  ASSERT_TRUE(family.add(share, last));
  {
    Child child(family, [] { return true; }, last);
    ASSERT_TRUE(child.did_it());
    EXPECT_EQ(family.reserve(), 0U);
  }
  const ProcessGroup::Member next = family.reserve();
  EXPECT_NE(next, 0U);
  EXPECT_NE(next, last) << "the same place, another name";
  EXPECT_TRUE(family.alone(share)) << "what the dead held is not the next one's";
}

TEST_F(FamilyTest, TheFullTableTurnsConnectionsAwayUntilTheDeadMakeRoom) {
  Child child(family, [&] {
    for (unsigned n = 0; n < 2 * ProcessGroup::kMaxConnections; ++n) family.enter(connection(n));
    return family.enter(connection(2 * ProcessGroup::kMaxConnections)) == 0;
  });
  ASSERT_TRUE(child.did_it());
  EXPECT_EQ(family.enter(connection(2 * ProcessGroup::kMaxConnections + 1)), 0U);
  child.kill();
  std::vector<ProcessGroup::ConnectionId> mine;
  for (unsigned n = 0; n < 1000; ++n) {
    mine.push_back(family.enter(connection(3 * ProcessGroup::kMaxConnections + n)));
    ASSERT_NE(mine.back(), 0U) << n;
  }
  for (const ProcessGroup::ConnectionId share : mine) EXPECT_TRUE(family.alone(share));
}

TEST_F(FamilyTest, OneMemberAnswersForAListenerUntilItEnds) {
  EXPECT_TRUE(try_become_responder(family, at(1)));
  EXPECT_TRUE(try_become_responder(family, at(1))) << "again";
  {
    Child child(family,
                [&] { return !try_become_responder(family, at(1)) && try_become_responder(family, at(2)); });
    ASSERT_TRUE(child.did_it());
    EXPECT_FALSE(try_become_responder(family, at(2)));
    child.kill();
    EXPECT_TRUE(try_become_responder(family, at(2)));
  }
  family.stop_leading(at(1), Carrier::kShm);
  Child child(family,
              [&] { return try_become_responder(family, at(1)) && !try_become_responder(family, at(2)); });
  EXPECT_TRUE(child.did_it());
}

TEST_F(FamilyTest, TheResponderIsNamedAndHasEachCarrierByItself) {
  ASSERT_TRUE(try_become_responder(family, at(1)));
  const pid_t parent = ::getpid();
  Child child(family, [&] {
    pid_t holder = 0;
    return !family.try_become_responder(at(1), Carrier::kShm, holder) && holder == parent &&
           try_become_responder(family, at(1), Carrier::kRdma);
  });
  EXPECT_TRUE(child.did_it());
  EXPECT_FALSE(try_become_responder(family, at(1), Carrier::kRdma));
}

TEST_F(FamilyTest, AResponderThatStopsAndLivesSaysSo) {
  pollfd news{family.news_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&news, 1, 0), 0);
  Child child(family, [&] {
    if (!try_become_responder(family, at(1))) return false;
    family.stop_leading(at(1), Carrier::kShm);
    return true;
  });
  ASSERT_TRUE(child.did_it());
  EXPECT_EQ(::poll(&news, 1, 0), 1);
  EXPECT_TRUE(try_become_responder(family, at(1)));
}

TEST_F(FamilyTest, NoMemberCanCutTheTableOff) {
  unsigned tables = 0;
  for (int fd = 0; fd < 4096; ++fd) {
    char path[256] = "";
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (::readlink(link.c_str(), path, sizeof path - 1) < 0) continue;
    if (std::string(path).find("ringroad-family") == std::string::npos) continue;
    ++tables;
    EXPECT_EQ(::ftruncate(fd, 0), -1);
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_GT(tables, 0U);
}

TEST_F(FamilyTest, AChildThatIsKilledWhereverItIsLeavesATableThatWorks) {
  // A writer at full speed, killed at a hundred different moments.
  for (int round = 0; round < 100; ++round) {
    Child child(family, [&] {
      for (;;) {
        for (unsigned n = 0; n < 64; ++n) family.release(family.enter(connection(n)));
      }
      return false;
    });
    ::usleep(static_cast<useconds_t>(round * 20));
    child.kill();
  }
  for (unsigned n = 0; n < 64; ++n) {
    const ProcessGroup::ConnectionId share = family.enter(connection(n));
    ASSERT_NE(share, 0U);
    EXPECT_TRUE(family.alone(share));
    EXPECT_EQ(find(n), ProcessGroup::Found::kSelf);
    family.release(share);
  }
}

TEST_F(FamilyTest, ThreadsMayUseItAtOnce) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 5000; ++i) {
        const unsigned n = t * 100 + i % 100;
        const ProcessGroup::ConnectionId share = family.enter(connection(n));
        Rendezvous unused;
        EXPECT_TRUE(family.alone(share));
        EXPECT_EQ(family.find(connection(n), unused), ProcessGroup::Found::kSelf);
        family.release(share);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace ringroad
