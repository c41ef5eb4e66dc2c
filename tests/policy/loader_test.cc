// Policies from files and directories.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "tests/policy/support.h"

namespace ringroad::policy {
namespace {

namespace fs = std::filesystem;

class PolicyFiles : public testing::Test {
 protected:
  PolicyFiles() {
    std::string pattern = (fs::temp_directory_path() / "ringroad-policy-XXXXXX").string();
    const char* made = mkdtemp(pattern.data());
    EXPECT_NE(made, nullptr);
    directory_ = pattern;
  }
  ~PolicyFiles() override { fs::remove_all(directory_); }

  std::string path(const std::string& name) const { return directory_ + "/" + name; }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }

  std::string write_rule(const std::string& name, const std::string& rule) const {
    return write(name, one_rule("name = \"" + rule + "\""));
  }

  std::string names(const LoadResult& loaded) const {
    std::string result;
    EXPECT_TRUE(loaded) << all_of(loaded.errors);
    for (std::size_t i = 0; loaded && i < loaded.policy->rule_count(); ++i) {
      result += loaded.policy->rule(i).name + " ";
    }
    return result;
  }

  std::string directory_;
};

TEST_F(PolicyFiles, ReadsOneFile) {
  const std::string file = write_rule("a.toml", "a");
  const LoadResult loaded = Policy::load_file(file);
  ASSERT_EQ(names(loaded), "a ");
  EXPECT_EQ(loaded.policy->sources(), std::vector<std::string>{file});
  EXPECT_EQ(loaded.policy->rule(0).file, file);
}

TEST_F(PolicyFiles, ReadsADirectorysTomlFilesInTheOrderOfTheirNames) {
  write_rule("20-b.toml", "b");
  write_rule("10-c.toml", "c");
  write_rule("3-a.toml", "a");
  write("40-old.toml~", "not a policy");
  write("README", "not a policy");
  write(".hidden.toml", "not a policy");
  write(".toml", "not a policy");
  EXPECT_EQ(names(Policy::load_file(directory_)), "c b a ");
  const LoadResult with_slash = Policy::load_file(directory_ + "/");
  ASSERT_EQ(names(with_slash), "c b a ");
  EXPECT_EQ(with_slash.policy->sources().front(), path("10-c.toml"));
  EXPECT_EQ(with_slash.policy->rule(2).index, 2U);
}

TEST_F(PolicyFiles, AnEmptyDirectoryIsAnEmptyPolicy) {
  EXPECT_EQ(names(Policy::load_file(directory_)), "");
}

TEST_F(PolicyFiles, ReadsSeveralPathsInTheOrderGiven) {
  fs::create_directory(path("policy.d"));
  write_rule("policy.d/x.toml", "x");
  EXPECT_EQ(
      names(Policy::load({write_rule("b.toml", "b"), path("policy.d"), write_rule("a.toml", "a")})),
      "b x a ");
}

TEST_F(PolicyFiles, OneBadFileRefusesAllAndEveryFilesErrorsAreReported) {
  write_rule("1.toml", "one");
  write("2.toml", one_rule("via = 1"));
  write("3.toml", "version = 1\n[[rule\n");
  const LoadResult loaded = Policy::load_file(directory_);
  EXPECT_FALSE(loaded);
  ASSERT_EQ(loaded.errors.size(), 2U);
  EXPECT_EQ(loaded.errors[0].file, path("2.toml"));
  EXPECT_EQ(loaded.errors[1].file, path("3.toml"));
}

TEST_F(PolicyFiles, ANameMayNotBeUsedAgainInAnotherFile) {
  write_rule("1.toml", "same");
  write_rule("2.toml", "same");
  const LoadResult loaded = Policy::load_file(directory_);
  EXPECT_EQ(all_of(loaded.errors), path("2.toml") +
                                       ":4:8: error: a second rule is named \"same\" (the first "
                                       "is at " +
                                       path("1.toml") + ":2; rename one of them)\n");
}

TEST_F(PolicyFiles, MaxChannelsStandsInOneFileOnly) {
  write("1.toml", "version = 1\nmax_channels = 64\n");
  write("2.toml", "version = 1\n\nmax_channels = 64\n");
  const LoadResult loaded = Policy::load_file(directory_);
  EXPECT_EQ(all_of(loaded.errors),
            path("2.toml") + ":3:1: error: \"max_channels\" is given a second time (the first is at " +
                path("1.toml") +
                ":2; it holds for the whole process, so leave one of them out)\n");
}

TEST_F(PolicyFiles, TheLogStandsInOneFileOnly) {
  write("1.toml", "version = 1\nlog = \"off\"\n");
  write("2.toml", "version = 1\nlog = \"off\"\n");
  const LoadResult loaded = Policy::load_file(directory_);
  ASSERT_EQ(loaded.errors.size(), 1U);
  EXPECT_EQ(loaded.errors[0].message, "\"log\" is given a second time");
}

TEST_F(PolicyFiles, RulesWithoutANameNeverClash) {
  fs::create_directory(path("d"));
  const LoadResult loaded =
      Policy::load({write("a.toml", one_rule("")), write("d/a.toml", one_rule(""))});
  EXPECT_EQ(names(loaded), "a.toml:2 a.toml:2 ");
}

TEST_F(PolicyFiles, SaysWhyAFileCannotBeOpened) {
  const std::string missing = path("missing.toml");
  EXPECT_EQ(all_of(Policy::load_file(missing).errors),
            missing +
                ": error: cannot open the policy: No such file or directory (check the "
                "path)\n");
  const std::string below = write_rule("a.toml", "a") + "/b.toml";
  EXPECT_EQ(all_of(Policy::load_file(below).errors),
            below + ": error: cannot open the policy: Not a directory (check the path)\n");
  const std::string loop = path("loop.toml");
  fs::create_symlink(loop, loop);
  EXPECT_EQ(all_of(Policy::load_file(loop).errors),
            loop + ": error: cannot open the policy: Too many levels of symbolic links (check the path)\n");
}

// Root may read everything, so the tests that root runs step down for a while.
class Unprivileged {
 public:
  explicit Unprivileged(const std::string& directory) {
    if (geteuid() == 0) {
      EXPECT_EQ(chown(directory.c_str(), kNobody, kNobody), 0);
      EXPECT_EQ(seteuid(kNobody), 0);
      stepped_down_ = true;
    }
  }
  ~Unprivileged() {
    if (stepped_down_) {
      EXPECT_EQ(seteuid(0), 0);
    }
  }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;

 private:
  static constexpr uid_t kNobody = 65534;
  bool stepped_down_ = false;
};

TEST_F(PolicyFiles, SaysWhenAFileOrDirectoryMayNotBeRead) {
  const Unprivileged unprivileged(directory_);
  const std::string file = write_rule("a.toml", "a");
  chmod(file.c_str(), 0);
  EXPECT_EQ(all_of(Policy::load_file(file).errors),
            file +
                ": error: cannot open the policy: Permission denied (let the user that runs "
                "the program read it)\n");
  chmod(directory_.c_str(), 0);
  const LoadResult loaded = Policy::load_file(directory_);
  const LoadResult by_default = Policy::load_default(nullptr, directory_.c_str());
  chmod(directory_.c_str(), 0700);
  EXPECT_EQ(all_of(loaded.errors),
            directory_ +
                ": error: cannot list the directory: Permission denied (let the user "
                "that runs the program read it)\n");
  EXPECT_FALSE(by_default) << "a policy that may be there must not be taken for none";
}

TEST_F(PolicyFiles, DoesNotWaitForAFifo) {
  const std::string fifo = path("a.toml");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(all_of(Policy::load_file(directory_).errors),
            fifo +
                ": error: not a regular file (name a file, or a directory that holds *.toml "
                "files)\n");
}

TEST_F(PolicyFiles, RefusesAFileThatIsTooLarge) {
  const std::string head = one_rule("name = \"a\"");
  const std::string fits = head + std::string(Policy::kLargestFileBytes - head.size(), '\n');
  EXPECT_EQ(names(Policy::load_file(write("a.toml", fits))), "a ");
  const std::string file = write("b.toml", fits + "\n");
  EXPECT_EQ(all_of(Policy::load_file(file).errors),
            file + ": error: larger than 256KiB (split it, or merge subnets)\n");
}

TEST_F(PolicyFiles, KeepsErrnoAndLeavesNoDescriptorOpen) {
  write_rule("a.toml", "a");
  const auto lowest_free = [] {
    const int fd = open("/dev/null", O_RDONLY);
    close(fd);
    return fd;
  };
  const int before = lowest_free();
  for (const std::string& source : {directory_, path("missing"), path("a.toml")}) {
    errno = 77;
    Policy::load_file(source);
    EXPECT_EQ(errno, 77) << source;
  }
  EXPECT_EQ(lowest_free(), before);
}

TEST_F(PolicyFiles, TheDefaultIsWhatRingroadPolicyNames) {
  const std::string file = write_rule("mine.toml", "mine");
  write_rule("policy.toml", "host");
  EXPECT_EQ(names(Policy::load_default(file.c_str(), directory_.c_str())), "mine ");
  EXPECT_EQ(Policy::default_paths(file.c_str(), directory_.c_str()),
            std::vector<std::string>{file});
  EXPECT_FALSE(Policy::load_default(path("missing").c_str(), directory_.c_str()));
}

TEST_F(PolicyFiles, TheDefaultIsElseTheHostsDirectoryAndThenItsFile) {
  const auto by_default = [&](const char* named) {
    return names(Policy::load_default(named, directory_.c_str()));
  };
  EXPECT_EQ(by_default(nullptr), "");
  EXPECT_EQ(by_default(""), "");
  write_rule("policy.toml", "file");
  EXPECT_EQ(by_default(nullptr), "file ");
  fs::create_directory(path("policy.d"));
  write_rule("policy.d/z.toml", "dropped-in");
  EXPECT_EQ(by_default(nullptr), "dropped-in file ");
  fs::remove(path("policy.toml"));
  EXPECT_EQ(by_default(""), "dropped-in ");
  const std::vector<std::string> expected = {path("policy.d"), path("policy.toml")};
  EXPECT_EQ(Policy::default_paths(nullptr, directory_.c_str()), expected);
  EXPECT_EQ(Policy::default_paths("", directory_.c_str()), expected);
}

TEST_F(PolicyFiles, TheHostsOwnDirectoryIsTheDefault) {
  const std::vector<std::string> expected = {"/etc/ringroad/policy.d", "/etc/ringroad/policy.toml"};
  EXPECT_EQ(Policy::default_paths(nullptr), expected);
}

}  // namespace
}  // namespace ringroad::policy
