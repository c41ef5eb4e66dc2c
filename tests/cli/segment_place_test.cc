// Whose statistics file is where, as far as one pid namespace shows it. Containers are in
// integration/acceptance/test_containers.py.

#include "cli/segment_place.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "cli/rooted_file.h"
#include "cli/segment_reader.h"
#include "tests/cli/support.h"

namespace ringroad::cli {
namespace {

constexpr std::uint64_t kNoNamespace = 1;  // the kernel's have larger numbers

class SegmentPlaces : public testing::Test {
 protected:
  // The file of this process becomes one of another pid namespace.
  std::string give_to_namespace(std::uint64_t pid_namespace, pid_t pid) {
    make_segment(folder_);
    hand_over(folder_, pid, [&](stats::SegmentHeader& header) { header.pid_namespace = pid_namespace; });
    const std::string name = std::to_string(pid) + "-" + std::to_string(pid_namespace);
    EXPECT_EQ(rename(own_segment(folder_).c_str(), folder_.file(name).c_str()), 0);
    return name;
  }

  const TempFolder folder_;
};

TEST_F(SegmentPlaces, AProcessOfThisNamespaceHasItsFileInTheNamedDirectory) {
  make_segment(folder_);
  const SegmentPlace place = place_of(folder_.path(), getpid());
  EXPECT_TRUE(place.exists());
  EXPECT_EQ(place.path(), own_segment(folder_));
  EXPECT_FALSE(place.is_of_container());
  ProcessReport report;
  std::string why;
  EXPECT_TRUE(read_segment(place, report, why)) << why;
  EXPECT_EQ(report.own_pid, getpid());
  EXPECT_EQ(report.pid_namespace, own_name_space("pid"));
  EXPECT_EQ(report.container, "");
}

TEST_F(SegmentPlaces, AFileOfANamespaceOfWhichNoProcessIsSeenIsNobodysHere) {
  give_to_namespace(kNoNamespace, getpid());
  const Snapshot running = read_segments(folder_.path(), Which::kRunning);
  EXPECT_TRUE(running.processes.empty());
  EXPECT_TRUE(running.skipped.empty());
}

TEST_F(SegmentPlaces, AFileOfANamespaceThatIsGoneIsOfAnEndedProcess) {
  const bool sees_first = ProcessFolder(1).name_space("mnt") != 0;
  if (!sees_first || own_name_space("pid") != stats::kInitialPidNamespace) {
    GTEST_SKIP() << "only root in the initial pid namespace sees every process, and not in every sandbox";
  }
  give_to_namespace(kNoNamespace, getpid());
  const Snapshot all = read_segments(folder_.path(), Which::kAll);
  ASSERT_EQ(all.processes.size(), 1U);
  EXPECT_FALSE(all.processes[0].alive);
}

// As an older library in a container names it.
TEST_F(SegmentPlaces, AFileThatNamesAnotherNamespaceIsNotOfTheProcessOfThatNumberHere) {
  make_segment(folder_);
  hand_over(folder_, getpid(), [](stats::SegmentHeader& header) { header.pid_namespace = kNoNamespace; });
  EXPECT_TRUE(read_segments(folder_.path(), Which::kRunning).processes.empty());
  const Snapshot one = read_segments_of(folder_.path(), {getpid()});
  EXPECT_TRUE(one.processes.empty());
  ASSERT_EQ(one.skipped.size(), 1U);
}

TEST_F(SegmentPlaces, AnOlderLibrarysFileHasNoNamespaceAndIsRead) {
  make_segment(folder_);
  hand_over(folder_, getpid(), [](stats::SegmentHeader& header) { header.pid_namespace = 0; });
  EXPECT_EQ(read_segments(folder_.path(), Which::kRunning).processes.size(), 1U);
}

TEST_F(SegmentPlaces, TheEndOfACgroupIsTheContainersShortNumber) {
  const std::string number = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
  EXPECT_EQ(end_of_cgroup("/system.slice/docker-" + number + ".scope"), "0123456789ab");
  EXPECT_EQ(end_of_cgroup("/kubepods/pod1/" + number), "0123456789ab");
  EXPECT_EQ(end_of_cgroup("/machine.slice/web"), "web");
  EXPECT_EQ(end_of_cgroup("/"), "");
}

TEST_F(SegmentPlaces, AContainersNameIsItsLabelAndFitsItsColumn) {
  const std::string longest(63, 'n');
  for (const std::string& name : {longest, longest + "m"}) {
    const std::string labels = "RINGROAD_LABELS=pod=other container=" + name;
    EXPECT_EQ(ContainerNames().of(ProcessFolder(getpid()), labels).name, longest);
  }
}

TEST_F(SegmentPlaces, ALinkInARootLeadsToAFolderOfThatRoot) {
  ASSERT_EQ(mkdir(folder_.file("inside").c_str(), 0755), 0);
  ASSERT_EQ(symlink("/inside", folder_.file("absolute").c_str()), 0);
  ASSERT_EQ(symlink("../../../../inside", folder_.file("up").c_str()), 0);
  ASSERT_EQ(symlink("/tmp", folder_.file("out").c_str()), 0);
  const Root root(folder_.path());
  struct stat wanted;
  ASSERT_EQ(stat(folder_.file("inside").c_str(), &wanted), 0);
  for (const char* path : {"/inside", "/absolute", "/up", "/inside/../absolute"}) {
    const int fd = root.open_folder(path);
    ASSERT_GE(fd, 0) << path;
    struct stat status;
    ASSERT_EQ(fstat(fd, &status), 0);
    EXPECT_EQ(status.st_ino, wanted.st_ino) << path;
    close(fd);
  }
  EXPECT_LT(root.open_folder("/out"), 0);
}

}  // namespace
}  // namespace ringroad::cli
