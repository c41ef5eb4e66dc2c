// systemd services.

#include "cli/doctor/unit.h"

#include <cerrno>
#include <filesystem>

#include "tests/doctor/support.h"

namespace ringroad::cli::doctor {
namespace {

using testing::HasSubstr;
using testing::Not;

// Answers whatever is asked of systemctl.
class OneUnit final : public Host {
 public:
  OneUnit(std::string show, int status = 0) : show_(std::move(show)), status_(status) {}
  FileText read(const std::string&) override { return {ENOENT, {}}; }
  FolderNames list(const std::string&) override { return {ENOENT, {}}; }
  FileText link(const std::string&) override { return {ENOENT, {}}; }
  FileStatus status(const std::string&) override { return {ENOENT, 0, 0, 0}; }
  FileText ask(const std::string&, const std::string&) override { return {ENOENT, {}}; }
  CommandResult run(const Command& command) override {
    CommandResult result;
    if (command.words.front() != "systemctl") return result;
    result.end = CommandResult::End::kExited;
    result.status = status_;
    (status_ == 0 ? result.out : result.err) = show_;
    return result;
  }
  ProgramFacts program(const ProgramPlace&) override { return {}; }
  void pass(std::chrono::milliseconds) override {}

 private:
  const std::string show_;
  const int status_;
};

const std::string kFine =
    "LoadState=loaded\nUser=mysql\nPrivateDevices=no\nDevicePolicy=auto\nPrivateNetwork=no\n"
    "LimitMEMLOCK=infinity\nProtectHome=no\n"
    "Environment=LD_PRELOAD=/usr/lib/libringroad.so\n"
    "ExecStart={ path=/usr/sbin/mariadbd ; argv[]=/usr/sbin/mariadbd ; }\n";

std::vector<Finding> examine(const std::string& more, const char* check = "unit", int status = 0) {
  OneUnit host(status == 0 ? kFine + more : more, status);
  Questions questions;
  questions.unit = "db";
  Context context(host, questions, policy::Policy::load({}));
  return run_checks(context, {check});
}

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = kFine;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos);
  return text.replace(at, from.size(), to);
}

std::vector<Finding> examine_instead(const std::string& from, const std::string& to) {
  OneUnit host(replaced(from, to));
  Questions questions;
  questions.unit = "db";
  Context context(host, questions, policy::Policy::load({}));
  return run_checks(context, {"unit"});
}

TEST(Unit, WithoutSandboxingIsOk) { EXPECT_EQ(worst(examine("")), Level::kOk); }

TEST(Unit, DeviceListsThatLackInfinibandFail) {
  EXPECT_THAT(examine_instead("DevicePolicy=auto", "DevicePolicy=closed"),
              Worst(Level::kFail, "DevicePolicy=closed: no access"));
  EXPECT_THAT(examine("DeviceAllow=/dev/null rw\n"),
              Worst(Level::kFail, "DeviceAllow=/dev/null rw"));
  const std::string verbs = "DeviceAllow=char-infiniband_verbs rw\n";
  EXPECT_THAT(examine(verbs), Worst(Level::kFail, "no access to /dev/infiniband/rdma_cm"));
  EXPECT_EQ(worst(examine(verbs + "DeviceAllow=/dev/infiniband/rdma_cm rw\n")), Level::kOk);
}

TEST(Unit, DeviceListsHaveToGrantBothKindsOfNodeForReadingAndWriting) {
  const std::string cm = "DeviceAllow=/dev/infiniband/rdma_cm rw\n";
  EXPECT_THAT(examine(cm), Worst(Level::kFail, "no access to /dev/infiniband/uverbs"));
  EXPECT_THAT(examine(cm + "DeviceAllow=char-infiniband_verbs r\n"),
              Worst(Level::kFail, "no access to /dev/infiniband/uverbs"));
  EXPECT_THAT(examine("DeviceAllow=char-infiniband_verbs rw\n"
                      "DeviceAllow=/dev/infiniband/rdma_cm r\n"),
              Worst(Level::kFail, "no access to /dev/infiniband/rdma_cm"));
  EXPECT_EQ(worst(examine(cm + "DeviceAllow=/dev/infiniband/uverbs0 rw\n")), Level::kOk);
  EXPECT_EQ(worst(examine("DeviceAllow=char-* rwm\n")), Level::kOk);
  EXPECT_EQ(worst(examine("DeviceAllow=char-infiniband_* rw\nDeviceAllow=char-misc rw\n")),
            Level::kOk);
  // The class is the one of ucm, another and older node; and paths are no globs.
  EXPECT_THAT(examine("DeviceAllow=char-infiniband_verbs rw\nDeviceAllow=char-infiniband_cm rw\n"),
              Worst(Level::kFail, "no access to /dev/infiniband/rdma_cm"));
  EXPECT_THAT(examine(cm + "DeviceAllow=/dev/infiniband/uverbs* rw\n"),
              Worst(Level::kFail, "no access to /dev/infiniband/uverbs"));
}

TEST(Unit, DeviceListsThatGrantOneOfTwoDevicesAreAWarning) {
  Tree tree;
  const std::string show =
      "LoadState=loaded\nUser=mysql\nPrivateDevices=no\nDevicePolicy=closed\n"
      "Environment=LD_PRELOAD=/usr/lib/libringroad.so\n"
      "DeviceAllow=/dev/infiniband/rdma_cm rw\nDeviceAllow=/dev/infiniband/uverbs0 rw\n";
  for (const auto& file : std::filesystem::directory_iterator(tree.path() + "/commands")) {
    const std::string name = file.path().filename().string();
    if (name.starts_with("systemctl_show")) tree.write("/commands/" + name, show);
  }
  tree.write("/sys/class/infiniband_verbs/uverbs0/dev", "231:192")
      .write("/sys/class/infiniband_verbs/uverbs1/dev", "231:193");
  Questions questions;
  questions.unit = "mariadb";
  EXPECT_THAT(tree.check("unit", questions),
              Worst(Level::kWarn, "no access to /dev/infiniband/uverbs1"));
}

TEST(Unit, AddressFamiliesByListAndByExceptionAreRead) {
  EXPECT_THAT(examine("RestrictAddressFamilies=AF_INET AF_UNIX\n"),
              Worst(Level::kFail, "keeps AF_NETLINK from it"));
  EXPECT_THAT(examine("RestrictAddressFamilies=AF_INET AF_NETLINK\n"),
              Worst(Level::kWarn, "keeps AF_UNIX from it"));
  EXPECT_THAT(examine("RestrictAddressFamilies=~AF_NETLINK AF_PACKET\n"),
              Worst(Level::kFail, "keeps AF_NETLINK"));
  EXPECT_EQ(worst(examine("RestrictAddressFamilies=~AF_PACKET\n")), Level::kOk);
  EXPECT_EQ(worst(examine("RestrictAddressFamilies=AF_INET AF_UNIX AF_NETLINK\n")), Level::kOk);
}

TEST(Unit, TheDropInIsTextThatCanBePasted) {
  const auto findings = examine("RestrictAddressFamilies=AF_INET AF_UNIX\n");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].remedy,
              HasSubstr("\n[Service]\nRestrictAddressFamilies=AF_INET AF_UNIX AF_NETLINK"));
}

TEST(Unit, ThatIsNotPreloadedIsAWarningUnlessRingroadRunStartsIt) {
  EXPECT_THAT(examine_instead("LD_PRELOAD=/usr/lib/libringroad.so", "A=b"),
              Worst(Level::kWarn, "neither LD_PRELOAD"));
  OneUnit host(replaced("LD_PRELOAD=/usr/lib/libringroad.so", "A=b") +
               "ExecStart={ path=/usr/bin/ringroad ; argv[]=ringroad run -- mariadbd ; }\n");
  Questions questions;
  questions.unit = "db";
  Context context(host, questions, policy::Policy::load({}));
  EXPECT_EQ(worst(run_checks(context, {"unit"})), Level::kOk);
}

TEST(Unit, OtherNamespacesAreTold) {
  EXPECT_THAT(examine_instead("PrivateNetwork=no", "PrivateNetwork=yes"),
              Worst(Level::kFail, "PrivateNetwork=yes"));
  EXPECT_THAT(examine("RootDirectory=/srv/db\n"), Worst(Level::kWarn, "RootDirectory=/srv/db"));
  EXPECT_THAT(examine("TemporaryFileSystem=/dev/shm\n"),
              Worst(Level::kWarn, "TemporaryFileSystem"));
}

TEST(Unit, ALibraryBelowHomeIsHiddenByProtectHome) {
  OneUnit host(replaced("ProtectHome=no", "ProtectHome=yes") +
               "Environment=LD_PRELOAD=/home/me/libringroad.so\n");
  Questions questions;
  questions.unit = "db";
  Context context(host, questions, policy::Policy::load({}));
  EXPECT_THAT(run_checks(context, {"unit"}), Worst(Level::kFail, "ProtectHome=yes"));
  EXPECT_EQ(worst(examine_instead("ProtectHome=no", "ProtectHome=yes")), Level::kOk);
}

TEST(Unit, ThatDoesNotExistOrCannotBeAskedForIsUnknown) {
  EXPECT_THAT(examine_instead("LoadState=loaded", "LoadState=not-found"),
              Worst(Level::kUnknown, "there is no such unit (not-found)"));
  EXPECT_THAT(examine("System has not been booted with systemd", "unit", 1),
              Worst(Level::kUnknown, "not been booted with systemd"));
}

TEST(Unit, ItsProgramIsTheOneThatRingroadRunStarts) {
  const auto program = [](const std::string& start) {
    return parse_unit("ExecStart={ " + start + " ; ignore_errors=no }").program();
  };
  EXPECT_EQ(program("path=/usr/sbin/mariadbd ; argv[]=/usr/sbin/mariadbd -- x"),
            "/usr/sbin/mariadbd");
  EXPECT_EQ(program("path=/usr/bin/ringroad ; argv[]=ringroad run -- /usr/sbin/mariadbd --x"),
            "/usr/sbin/mariadbd");
  EXPECT_EQ(program("path=/usr/bin/ringroad ; argv[]=ringroad run redis-server"),
            "/usr/bin/ringroad");
  EXPECT_EQ(parse_unit("ExecStart=").program(), "");
}

TEST(Unit, AmbientCapabilitiesMayLiftTheMemoryLimit) {
  OneUnit host(replaced("LimitMEMLOCK=infinity", "LimitMEMLOCK=65536") +
               "AmbientCapabilities=cap_ipc_lock\n");
  Questions questions;
  questions.unit = "db";
  Context context(host, questions, policy::Policy::load({}));
  EXPECT_THAT(run_checks(context, {"memlock"}), Worst(Level::kOk, "CAP_IPC_LOCK"));
}

TEST(Unit, OfRootMayLockEverything) {
  OneUnit host(replaced("User=mysql", "User=") + "CapabilityBoundingSet=cap_chown cap_ipc_lock\n");
  Questions questions;
  questions.unit = "db";
  Context context(host, questions, policy::Policy::load({}));
  EXPECT_THAT(run_checks(context, {"memlock"}), Worst(Level::kOk, "CAP_IPC_LOCK"));
}

}  // namespace
}  // namespace ringroad::cli::doctor
