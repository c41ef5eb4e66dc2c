// What processes leave in the runtime directory, and what becomes of it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>

#include "rsocket-core/process/control_socket.h"
#include "rsocket-core/stats/file_name.h"
#include "rsocket-core/stats/stats.h"
#include "tests/file_name_here.h"

namespace ringroad::stats {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRandom = ".0123456789abcdef";

class StatsFiles : public ::testing::Test {
 protected:
  StatsFiles() {
    char name[] = "/tmp/stats_files_test.XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~StatsFiles() override { fs::remove_all(directory_); }

  std::set<std::string> names() const {
    std::set<std::string> all;
    for (const auto& entry : fs::directory_iterator(directory_)) all.insert(entry.path().filename());
    return all;
  }
  // A process that makes its file and its control socket, and is killed.
  std::string killed() {
    const pid_t child = ::fork();
    if (child == 0) {
      Segment* segment = Segment::create(directory_.c_str(), "killed");
      const std::string socket = std::string(segment->path()) + control::kSuffix + kRandom;
      ::close(::open(socket.c_str(), O_CREAT | O_WRONLY, 0600));
      ::raise(SIGKILL);
    }
    ::waitpid(child, nullptr, 0);
    return test::file_name_here(child);
  }

  std::string directory_;
};

TEST_F(StatsFiles, NothingIsMadeBesideOneThatIsRemovedMeanwhile) {
  for (const bool under_way : {true, false}) {
    for (int round = 0; round < 100; ++round) {
      const std::unique_ptr<Segment> own(Segment::create(directory_.c_str(), "own"));
      ASSERT_NE(own, nullptr);
      control::ControlSocket socket;
      std::latch making(1);
      std::latch removing(1);
      bool stood = false;
      std::thread agent([&] {
        stood = own->make_beside([&] {
          making.count_down();
          removing.wait();
          EXPECT_TRUE(socket.open(own->path()));
        });
      });
      if (under_way) making.wait();
      removing.count_down();
      own->remove_file();
      agent.join();
      EXPECT_EQ(stood, socket.fd() >= 0);
      ASSERT_EQ(names(), std::set<std::string>()) << "round " << round;
      if (stood) ::close(socket.fd());
      EXPECT_FALSE(own->make_beside([] { ADD_FAILURE() << "it is removed"; }));
    }
  }
}

TEST_F(StatsFiles, OfTheDeadAreRemovedWithWhatStandsBesideThem) {
  const std::unique_ptr<Segment> own(Segment::create(directory_.c_str(), "own"));
  ASSERT_NE(own, nullptr);
  const std::string dead = killed();
  ASSERT_EQ(names(),
            (std::set<std::string>{test::file_name_here(::getpid()), dead,
                                   dead + control::kSuffix + kRandom}));
  remove_files_of_the_dead(directory_.c_str(), 0);
  EXPECT_EQ(names(), std::set<std::string>{test::file_name_here(::getpid())});
}

TEST_F(StatsFiles, OfTheDeadStayForAWhileToShowWhatTheyDidLast) {
  const std::string dead = killed();
  remove_files_of_the_dead(directory_.c_str(), 600);
  remove_files_of_the_dead(directory_.c_str(), 600);
  EXPECT_TRUE(names().contains(dead));
  // Somebody looks at them meanwhile, and the time passes.
  const std::string file = directory_ + "/" + dead;
  timespec found[2] = {{0, UTIME_NOW}, {std::time(nullptr) - 700, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), found, 0), 0);
  std::ifstream(file).get();
  remove_files_of_the_dead(directory_.c_str(), 600);
  EXPECT_EQ(names(), std::set<std::string>{});
}

TEST_F(StatsFiles, OfOthersAreLeftAlone) {
  const std::string dead = killed();
  // Nobody's statistics, another process' number, and what no library of this kind has written.
  fs::copy_file(directory_ + "/" + dead, directory_ + "/4194300");
  fs::create_symlink(directory_ + "/" + dead, directory_ + "/4194301");
  ::close(::open((directory_ + "/4194302").c_str(), O_CREAT | O_WRONLY, 0600));
  fs::create_directory(directory_ + "/4194303");
  ::close(::open((directory_ + "/notes").c_str(), O_CREAT | O_WRONLY, 0600));
  remove_files_of_the_dead(directory_.c_str(), 0);
  EXPECT_EQ(names(),
            (std::set<std::string>{"4194300", "4194301", "4194302", "4194303", "notes"}));
}

TEST_F(StatsFiles, OfAnotherPidNamespaceAreLeftAlone) {
  const std::string dead = killed();
  const int fd = ::open((directory_ + "/" + dead).c_str(), O_RDWR);
  SegmentHeader header;
  ASSERT_EQ(::pread(fd, &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
  ++header.pid_namespace;
  ASSERT_EQ(::pwrite(fd, &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
  ::close(fd);
  remove_files_of_the_dead(directory_.c_str(), 0);
  EXPECT_TRUE(names().contains(dead));
}

// A process that is number 1 in a pid namespace of its own, and has a file; it ends with this object.
class OtherNamespace {
 public:
  explicit OtherNamespace(const std::string& directory) {
    int made[2];
    EXPECT_EQ(::pipe(made), 0);
    helper_ = ::fork();
    if (helper_ == 0) {
      if (::unshare(CLONE_NEWPID) != 0) ::_exit(1);
      const pid_t first = ::fork();
      if (first == 0) {
        Segment* segment = Segment::create(directory.c_str(), "inside");
        const std::string name = segment != nullptr ? segment->path() : "";
        if (::write(made[1], name.c_str(), name.size() + 1) > 0) ::pause();
      }
      ::_exit(::waitpid(first, nullptr, 0) == first ? 0 : 2);
    }
    ::close(made[1]);
    char path[256] = {};
    if (::read(made[0], path, sizeof path - 1) > 0) name_ = fs::path(path).filename();
    ::close(made[0]);
  }
  ~OtherNamespace() {
    const std::string helper = std::to_string(helper_);
    std::ifstream children("/proc/" + helper + "/task/" + helper + "/children");
    pid_t first = 0;
    if (children >> first) ::kill(first, SIGKILL);
    ::waitpid(helper_, nullptr, 0);
  }
  OtherNamespace(const OtherNamespace&) = delete;
  OtherNamespace& operator=(const OtherNamespace&) = delete;

  // Of its process' file; "": this user may make none.
  const std::string& name() const { return name_; }

 private:
  pid_t helper_;
  std::string name_;
};

TEST_F(StatsFiles, OfEqualNumbersInTwoPidNamespacesAreTwo) {
  const OtherNamespace one(directory_);
  if (one.name().empty()) GTEST_SKIP() << "no pid namespaces here";
  const OtherNamespace other(directory_);
  EXPECT_NE(one.name(), other.name());
  EXPECT_EQ(one.name().substr(0, 2), "1-");
  EXPECT_EQ(other.name().substr(0, 2), "1-");
  EXPECT_EQ(names(), (std::set<std::string>{one.name(), other.name()}));
}

TEST_F(StatsFiles, OfLiveProcessesOfOtherPidNamespacesStay) {
  std::string name;
  {
    const OtherNamespace other(directory_);
    if (other.name().empty()) GTEST_SKIP() << "no pid namespaces here";
    name = other.name();
    // A process that has no number here, as far as its name goes; and a socket beside it.
    const std::string dead = killed();
    const std::string moved = dead + name.substr(1);
    fs::copy_file(directory_ + "/" + name, directory_ + "/" + moved);
    const std::string socket = moved + "9" + control::kSuffix;
    ::close(::open((directory_ + "/" + socket).c_str(), O_CREAT | O_WRONLY, 0600));
    remove_files_of_the_dead(directory_.c_str(), 0);
    EXPECT_EQ(names(), (std::set<std::string>{name, moved, socket}));
  }
  remove_files_of_the_dead(directory_.c_str(), 0);
  EXPECT_TRUE(names().contains(name)) << "nobody here can tell that it has ended";
}

TEST_F(StatsFiles, AreNamedByProcessAndPidNamespace) {
  char text[FileName::kBytes];
  FileName::of(4711, kInitialPidNamespace).write(text);
  EXPECT_STREQ(text, "4711");
  FileName::of(7, 4026532179).write(text);
  EXPECT_STREQ(text, "7-4026532179");
  const auto read = [](const char* name) {
    const char* end;
    const FileName of = FileName::at(name, end);
    return std::make_tuple(of.pid, of.pid_namespace, std::string(end));
  };
  EXPECT_EQ(read("4711"), std::make_tuple(4711U, 0U, ""));
  EXPECT_EQ(read("7-4026532179"), std::make_tuple(7U, 4026532179U, ""));
  EXPECT_EQ(read("7-4026532179.control.0f"), std::make_tuple(7U, 4026532179U, ".control.0f"));
  EXPECT_EQ(read("7.control"), std::make_tuple(7U, 0U, ".control"));
  EXPECT_EQ(read("7-"), std::make_tuple(7U, 0U, "-"));
  EXPECT_EQ(read("7-07"), std::make_tuple(7U, 0U, "-07"));
  for (const char* none : {"", "-7", "07", "notes", "2147483648", "18446744073709551617"}) {
    EXPECT_EQ(std::get<0>(read(none)), 0U) << none;
  }
}

TEST_F(StatsFiles, TellTheProgramThatTheProcessBecomesWhatTheOperatorWanted) {
  const auto mode = static_cast<std::uint32_t>(control::Mode::kTcp);
  {
    const std::unique_ptr<Segment> before(Segment::create(directory_.c_str(), "before"));
    EXPECT_EQ(before->mode_before_exec(), 0U);
    before->header().operator_mode.store(mode);
  }
  const std::unique_ptr<Segment> after(Segment::create(directory_.c_str(), "after"));
  EXPECT_EQ(after->mode_before_exec(), mode);
  // One that had the same number is another process.
  after->header().operator_mode.store(mode);
  ++after->header().start_ticks;
  const std::unique_ptr<Segment> another(Segment::create(directory_.c_str(), "another"));
  EXPECT_EQ(another->mode_before_exec(), 0U);
}

}  // namespace
}  // namespace ringroad::stats
