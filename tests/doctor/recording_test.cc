// What is recorded of a host is examined like the host.

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "cli/doctor/live_host.h"
#include "cli/doctor/recording_host.h"
#include "tests/doctor/support.h"

namespace ringroad::cli::doctor {
namespace {

std::vector<Finding> examine(Host& host, const std::string& policy) {
  const Questions questions = all_questions();
  Context context(host, questions, policy::Policy::load({policy}));
  return run_checks(context, {});
}

class Recording : public testing::TestWithParam<const char*> {};

TEST_P(Recording, IsExaminedLikeTheHost) {
  const std::string source = testdata(GetParam());
  const TempFolder folder;
  RecordedHost original(source);
  RecordingHost recorder(original, folder.path());
  const std::string before = texts(examine(recorder, source + "/policy"));
  std::string why;
  ASSERT_TRUE(recorder.finish(why)) << why;
  RecordedHost copy(folder.path());
  EXPECT_EQ(texts(examine(copy, source + "/policy")), before);
}

INSTANTIATE_TEST_SUITE_P(Trees, Recording, testing::Values("good", "bad", "softroce"));

TEST(RecordingHost, LaysNothingDownOutsideItsFolder) {
  const TempFolder folder;
  write_file(folder.file("outside"), "mine\n");
  std::filesystem::create_directory(folder.file("tree"));
  LiveHost live;
  RecordingHost recorder(live, folder.file("tree"));
  recorder.read("/proc/../etc/hostname");
  recorder.list(folder.path() + "/tree/..");
  recorder.write("/../outside", "yours");
  EXPECT_EQ(read_text(folder.file("outside")).text, "mine");
}

TEST(RecordingHost, TellsThatItCannotWrite) {
  LiveHost live;
  RecordingHost recorder(live, "/dev/null");
  recorder.read("/proc/self/comm");
  std::string why;
  EXPECT_FALSE(recorder.finish(why));
  EXPECT_NE(why, "");
}

TEST(RecordedHost, TellsWhatCouldNotBeRead) {
  Tree tree("");
  tree.write("/meta", "error /a/b EACCES\n").write("/later/c", "2").write("/c", "1");
  RecordedHost host(tree.path());
  EXPECT_EQ(host.read("/a/b").error, EACCES);
  EXPECT_EQ(host.list("/a/b").error, EACCES);
  EXPECT_EQ(host.text("/c"), "1");
  host.pass(std::chrono::milliseconds(1));
  EXPECT_EQ(host.text("/c"), "2");
  EXPECT_TRUE(host.run({"ip", "link"}).missing());
}

TEST(LiveHost, AsksOnceForWhatSeveralChecksAsk) {
  const TempFolder folder;
  LiveHost host;
  const std::vector<std::string> words = {"sh", "-c", "echo x | tee -a " + folder.file("asked")};
  EXPECT_EQ(host.run(words).out, "x\n");
  EXPECT_EQ(host.run(words).out, "x\n");
  EXPECT_EQ(read_text(folder.file("asked")).text, "x");
}

TEST(LiveHost, NeverWaitsForAPipe) {
  const TempFolder folder;
  ASSERT_EQ(mkfifo(folder.file("pipe").c_str(), 0600), 0);
  LiveHost host;
  EXPECT_EQ(host.text(folder.file("pipe")), "");
  EXPECT_EQ(host.read(folder.path()).error, EISDIR);
}

TEST(LiveHost, ReadsNoMoreThanItsLimit) {
  LiveHost host;
  EXPECT_LE(host.read("/dev/zero").text.size(), kMostBytes + 65536);
}

}  // namespace
}  // namespace ringroad::cli::doctor
