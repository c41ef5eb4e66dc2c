// What a service's main process has preloaded, and which file has had the last word.

#include "cli/doctor/running_preload.h"

#include <cerrno>
#include <map>

#include "cli/doctor/live_host.h"
#include "cli/doctor/recording_host.h"
#include "tests/doctor/support.h"

namespace ringroad::cli::doctor {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kOurs = "/usr/lib/ringroad/libringroad.so";
const std::string kMalloc = "/usr/lib/libjemalloc.so.2";

std::string map_of(const std::vector<std::string>& files) {
  std::string text;
  for (const std::string& file : files) {
    text += "7f0000000000-7f0000001000 r-xp 00000000 08:01 12                        " + file + "\n";
  }
  return text + "7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                  [stack]";
}

std::string environment_of(const std::string& preload) {
  using namespace std::string_literals;
  return "PASSWORD=secret\0LD_PRELOAD="s + preload + "\0HOME=/root\0"s;
}

// A unit named db whose process is 4711.
class OneService final : public Host {
 public:
  OneService() {
    said["systemctl"] =
        "LoadState=loaded\nMainPID=4711\nEnvironment=LD_PRELOAD=" + kOurs +
        "\nFragmentPath=/etc/systemd/system/db.service\nDropInPaths=/run/db.service.d/50-ringroad.conf\n"
        "EnvironmentFiles=/etc/default/d* (ignore_errors=yes)\n";
    process(environment_of(kMalloc + ":" + kOurs), map_of({"/usr/sbin/db", kOurs, kMalloc}));
  }
  void process(const std::string& environment, const std::string& maps) {
    files["/proc/4711/environ"] = environment;
    files["/proc/4711/maps"] = maps;
  }
  std::vector<Finding> check() {
    Questions questions;
    questions.unit = "db";
    questions.library = kOurs;
    Context context(*this, questions, policy::Policy::load({}));
    return run_checks(context, {"unit"});
  }

  FileText read(const std::string& path) override {
    const auto found = files.find(path);
    return found == files.end() ? FileText{error, {}} : FileText{0, found->second};
  }
  FolderNames list(const std::string& path) override {
    FolderNames names;
    for (const auto& [file, text] : files) {
      if (file.starts_with(path + "/")) names.names.push_back(file.substr(path.size() + 1));
    }
    return names;
  }
  FileText link(const std::string& path) override {
    const auto found = links.find(path);
    return found == links.end() ? FileText{EINVAL, {}} : FileText{0, found->second};
  }
  FileStatus status(const std::string&) override { return {ENOENT, 0, 0, 0}; }
  FileText ask(const std::string&, const std::string&) override { return {ENOENT, {}}; }
  CommandResult run(const Command& command) override {
    CommandResult result;
    const auto found = said.find(command.words.front());
    if (found == said.end()) return result;
    result.end = CommandResult::End::kExited;
    result.out = found->second;
    return result;
  }
  ProgramFacts program(const ProgramPlace&) override { return {}; }
  void pass(std::chrono::milliseconds) override {}

  std::map<std::string, std::string> files;
  std::map<std::string, std::string> links;
  std::map<std::string, std::string> said;
  int error = ENOENT;
};

TEST(RunningPreload, IsToldInTheOrderInWhichTheLoaderTakesIt) {
  OneService host;
  host.files["/proc/4711/root/etc/ld.so.preload"] = "# ours\n/opt/agent.so /opt/second.so\n";
  host.files["/proc/4711/maps"] += "\n" + map_of({"/opt/agent.so"});
  EXPECT_THAT(texts(host.check()), HasSubstr("process 4711 preloads " + kMalloc + ", then " + kOurs +
                                             ", then /opt/agent.so, then /opt/second.so (not loaded)"));
  EXPECT_EQ(worst(host.check()), Level::kOk);
}

TEST(RunningPreload, IsLoadedUnderTheNameBehindALinkOrWithoutAFolder) {
  OneService host;
  host.process(environment_of("/lib/libjemalloc.so libtcmalloc.so.4:" + kOurs),
               map_of({"/usr/lib/libjemalloc.so.2", "/usr/lib/libtcmalloc.so.4", kOurs}));
  host.links["/proc/4711/root/usr/lib/libjemalloc.so"] = "libjemalloc.so.2";
  EXPECT_THAT(texts(host.check()), Not(HasSubstr("not loaded")));
}

TEST(RunningPreload, ThatTheUnitDoesNotSayNamesTheFileThatHasWon) {
  OneService host;
  host.process(environment_of(kMalloc), map_of({"/usr/sbin/db", kMalloc}));
  host.files["/etc/default/db"] = "LD_PRELOAD=" + kMalloc;
  EXPECT_THAT(host.check(),
              Worst(Level::kFail, "process 4711 preloads " + kMalloc +
                                      ", not the library of its Environment=; the last word "
                                      "has /etc/default/db"));
  // Nothing says so now: it runs since before.
  host.files.erase("/etc/default/db");
  EXPECT_THAT(host.check(), Worst(Level::kFail, "not the library of its Environment="));
  EXPECT_THAT(texts(host.check()), Not(HasSubstr("the last word")));
}

TEST(RunningPreload, ThatTheLoaderHasDroppedIsAFailure) {
  OneService host;
  host.process(environment_of(kOurs), map_of({"/usr/sbin/db"}));
  EXPECT_THAT(host.check(), Worst(Level::kFail, kOurs + " (not loaded)"));
}

TEST(RunningPreload, OfAProcessThatMayNotBeLookedAtIsUnknown) {
  OneService host;
  host.files.clear();
  host.error = EACCES;
  EXPECT_THAT(host.check(), Worst(Level::kUnknown, "process 4711: Permission denied"));
}

TEST(RunningPreload, IsNotAskedForWhereTheServiceDoesNotRun) {
  OneService host;
  host.said["systemctl"] = "LoadState=loaded\nMainPID=0\nEnvironment=LD_PRELOAD=" + kOurs + "\n";
  EXPECT_THAT(texts(host.check()), Not(HasSubstr("process")));
}

TEST(MallocLibrary, OutsideTheFoldersThatMysqldSafeAllowsIsAFailure) {
  OneService host;
  const std::string start = "ExecStart={ path=/usr/bin/mysqld_safe ; argv[]=/usr/bin/mysqld_safe ";
  host.said["systemctl"] += start + "--user=mysql ; }\n";
  host.said["my_print_defaults"] = "--malloc-lib=" + kOurs + "\n";
  EXPECT_EQ(worst(host.check()), Level::kOk) << "a wrapper without a list";
  host.files["/usr/bin/mysqld_safe"] = "#!/bin/sh\n  malloc_dirs=\"/usr/lib /usr/lib64\"\n";
  EXPECT_THAT(host.check(),
              Worst(Level::kFail, "malloc-lib=" + kOurs +
                                      " is in none of the folders that it allows: /usr/lib /usr/lib64"));
  host.said["my_print_defaults"] = "--malloc-lib=" + kMalloc + "\n";
  EXPECT_EQ(worst(host.check()), Level::kOk);
  host.said["systemctl"] += start + "--malloc_lib=/opt/m.so ; }\n";
  EXPECT_THAT(host.check(), Worst(Level::kFail, "malloc-lib=/opt/m.so"));
}

TEST(RecordingHost, KeepsOfAnEnvironmentOnlyThePreloads) {
  const TempFolder folder;
  OneService host;
  RecordingHost recorder(host, folder.path());
  EXPECT_THAT(recorder.text("/proc/4711/environ"), HasSubstr("secret"));
  const std::string kept = read_text(folder.file("proc/4711/environ")).text;
  EXPECT_THAT(kept, HasSubstr("LD_PRELOAD=" + kMalloc));
  EXPECT_THAT(kept, Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace ringroad::cli::doctor
