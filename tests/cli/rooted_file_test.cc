#include "cli/rooted_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "tests/cli/support.h"

namespace ringroad::cli {
namespace {

class RootedFiles : public testing::Test {
 protected:
  RootedFiles() {
    std::filesystem::create_directories(folder_.file("root/usr/lib"));
    write_file(folder_.file("root/usr/lib/a"), "inside");
    write_file(folder_.file("a"), "outside");
  }

  void link(const std::string& target, const std::string& name) {
    std::filesystem::create_symlink(target, folder_.file("root" + name));
  }
  std::string text(const std::string& path) {
    const RootedFile file = root_.open(path);
    error_ = file.error;
    path_ = file.path;
    char bytes[16];
    const ssize_t n = file.fd < 0 ? 0 : read(file.fd, bytes, sizeof bytes);
    return std::string(bytes, n < 0 ? 0 : static_cast<std::size_t>(n));
  }

  const TempFolder folder_;
  const Root root_{folder_.file("root")};
  int error_ = -1;
  std::string path_;
};

TEST_F(RootedFiles, AreFoundBelowTheRoot) {
  EXPECT_EQ(text("/usr/lib/a"), "inside");
  EXPECT_EQ(text("usr//lib/./a"), "inside");
  EXPECT_EQ(path_, "/usr/lib/a");
  EXPECT_EQ(text("/usr/lib/b"), "");
  EXPECT_EQ(error_, ENOENT);
  EXPECT_EQ(text("/usr/lib/a/b"), "");
  EXPECT_EQ(error_, ENOTDIR);
}

TEST_F(RootedFiles, LinksLeadNoFurtherThanToTheRoot) {
  link("/usr/lib", "/lib");
  link("../../../../../../usr/lib/a", "/usr/lib/up");
  link("/usr/lib/a", "/usr/lib/absolute");
  link(folder_.file("a"), "/usr/lib/out");
  EXPECT_EQ(text("/lib/a"), "inside");
  EXPECT_EQ(path_, "/usr/lib/a");
  EXPECT_EQ(text("/lib/up"), "inside");
  EXPECT_EQ(text("/lib/absolute"), "inside");
  EXPECT_EQ(text("/../../a"), "");
  EXPECT_EQ(error_, ENOENT);
  EXPECT_EQ(text("/lib/out"), "");
  EXPECT_EQ(error_, ENOENT);
}

TEST_F(RootedFiles, LinksInALoopEnd) {
  link("loop", "/loop");
  link("/there/x", "/here");
  link("/here/x", "/there");
  for (const char* path : {"/loop", "/here", "/there/a"}) {
    EXPECT_EQ(text(path), "");
    EXPECT_EQ(error_, ELOOP) << path;
  }
}

TEST_F(RootedFiles, FortyLinksAreFollowedAsByTheKernel) {
  link("/usr/lib/a", "/link1");
  for (int i = 2; i <= 41; ++i) {
    link("link" + std::to_string(i - 1), "/link" + std::to_string(i));
  }
  EXPECT_EQ(text("/link40"), "inside");
  EXPECT_EQ(text("/link41"), "");
  EXPECT_EQ(error_, ELOOP);
}

TEST_F(RootedFiles, AnEndlessPathIsRefused) {
  std::string deep;
  for (int i = 0; i < 130; ++i) deep += "/d";
  std::filesystem::create_directories(folder_.file("root" + deep));
  write_file(folder_.file("root" + deep + "/a"), "deep");
  EXPECT_EQ(text(deep + "/a"), "");
  EXPECT_EQ(error_, ENAMETOOLONG);
  EXPECT_EQ(text(std::string(10'000, '/') + "usr/lib/a"), "");
  EXPECT_EQ(error_, ENAMETOOLONG);
}

TEST_F(RootedFiles, WhatIsNoRegularFileIsNotOpened) {
  ASSERT_EQ(mkfifo(folder_.file("root/pipe").c_str(), 0666), 0);
  link("pipe", "/link");
  const int opened = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  ASSERT_GE(inotify_add_watch(opened, folder_.file("root/pipe").c_str(), IN_OPEN), 0);
  for (const char* path : {"/pipe", "/link", "/usr", "/", "", "/.."}) {
    EXPECT_EQ(text(path), "");
    EXPECT_EQ(error_, EACCES) << path;
  }
  EXPECT_EQ(Root().open(folder_.file("root/pipe")).error, EACCES);
  // Opening a device may already do something to it.
  char event[sizeof(inotify_event)];
  EXPECT_EQ(read(opened, event, sizeof event), -1);
  EXPECT_EQ(errno, EAGAIN);
  close(opened);
}

TEST_F(RootedFiles, OneThatMayNotBeReadKeepsItsStatus) {
  ASSERT_EQ(chmod(folder_.file("root/usr/lib/a").c_str(), 0111), 0);
  const bool root = getuid() == 0;  // root reads every file
  ASSERT_TRUE(!root || seteuid(65534) == 0);
  for (const RootedFile& file :
       {root_.open("/usr/lib/a"), Root().open(folder_.file("root/usr/lib/a"))}) {
    EXPECT_EQ(file.error, 0);
    EXPECT_EQ(file.fd, -1);
    EXPECT_EQ(file.status.st_mode & 0777U, 0111U);
  }
  ASSERT_TRUE(!root || seteuid(0) == 0);
}

TEST_F(RootedFiles, OfTheOwnRootAreTheKernels) {
  const RootedFile own = Root().open("/proc/self/exe");
  EXPECT_EQ(own.error, 0);
  EXPECT_EQ(own.path, std::filesystem::canonical("/proc/self/exe"));
  EXPECT_EQ(Root("/").open(folder_.file("a")).error, 0);
  EXPECT_EQ(Root().open(folder_.file("absent")).error, ENOENT);
}

TEST_F(RootedFiles, ARootThatIsNotThereIsAnError) {
  EXPECT_EQ(Root(folder_.file("absent")).open("/usr/lib/a").error, ENOENT);
  EXPECT_EQ(Root(folder_.file("a")).open("/usr/lib/a").error, ENOTDIR);
}

TEST_F(RootedFiles, LeaveNoDescriptorBehind) {
  const auto count = [] {
    const auto folder = std::filesystem::directory_iterator("/proc/self/fd");
    return std::distance(begin(folder), end(folder));
  };
  link("loop", "/loop");
  const auto before = count();
  for (const char* path : {"/usr/lib/a", "/loop", "/usr", "/usr/lib/absent"}) root_.open(path);
  EXPECT_EQ(count(), before);
}

}  // namespace
}  // namespace ringroad::cli
