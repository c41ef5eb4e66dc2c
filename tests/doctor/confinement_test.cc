// AppArmor's profiles, and SELinux with a kernel that answers as one with given rules does.

#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <regex>
#include <set>

#include "cli/doctor/live_host.h"
#include "cli/doctor/recording_host.h"
#include "tests/doctor/support.h"

namespace ringroad::cli::doctor {
namespace {

using testing::HasSubstr;
using testing::Not;

Questions program(const std::string& path) {
  Questions questions;
  questions.program = path;
  return questions;
}

constexpr const char* kLocalProfile = "/etc/apparmor.d/local/usr.sbin.mariadbd";

TEST(AppArmor, AProfileThatIncludesTheRulesOrOnlyComplainsIsOk) {
  for (const char* line : {"include \"/usr/share/ringroad/apparmor/ringroad\"",
                           "#include if exists <abstractions/ringroad>"}) {
    Tree tree("bad");
    tree.write(kLocalProfile, line);
    EXPECT_EQ(worst(tree.check("apparmor", all_questions())), Level::kOk) << line;
  }
  Tree complain("bad");
  complain.write("/proc/4711/attr/current", "/usr/sbin/mariadbd (complain)")
      .write("/sys/kernel/security/apparmor/profiles", "/usr/sbin/mariadbd (complain)");
  EXPECT_EQ(worst(complain.check("apparmor", all_questions())), Level::kOk);
}

TEST(AppArmor, ACommentIsNoRule) {
  Tree tree("bad");
  tree.write(kLocalProfile, "# include \"/usr/share/ringroad/apparmor/ringroad\"");
  EXPECT_EQ(worst(tree.check("apparmor", all_questions())), Level::kWarn);
}

TEST(AppArmor, EachRuleThatIsMissingIsNamedWithTheLineThatMendsIt) {
  Tree tree("bad");
  tree.write(kLocalProfile,
             "/etc/ringroad/** r,\n/dev/infiniband/* rw,\nnetwork unix stream,\n/usr/lib/libringroad.so mr,");
  const std::vector<Finding> findings = tree.check("apparmor", all_questions());
  const std::string said = texts(findings);
  EXPECT_EQ(worst(findings), Level::kWarn);
  for (const char* missing : {"/dev/shm/ringroad/** rw,", "network unix seqpacket,", "network netlink,"}) {
    EXPECT_THAT(said, HasSubstr(missing));
  }
  for (const char* there : {"/etc/ringroad/** r,", "/dev/infiniband/* rw,", "libringroad.so mr,"}) {
    EXPECT_THAT(said, Not(HasSubstr(there)));
  }
  EXPECT_THAT(findings.front().remedy, HasSubstr("share/ringroad/apparmor/ringroad\""));
}

TEST(AppArmor, ProfilesThatOnlyRootMayReadAreUnknown) {
  Tree tree;
  tree.meta("error /sys/kernel/security/apparmor/profiles EACCES");
  EXPECT_THAT(tree.check("apparmor", program("/usr/sbin/mariadbd")),
              Worst(Level::kUnknown, "Permission denied"));
}

// Source type, target type, class.
using Object = std::array<std::string, 3>;
using Rules = std::map<Object, std::set<std::string>>;

std::vector<std::string> words_of(const std::string& text) {
  const std::regex word("[a-z_]+");
  return {std::sregex_token_iterator(text.begin(), text.end(), word), std::sregex_token_iterator()};
}

std::string text_of_module() {
  return std::regex_replace(read_text(RINGROAD_SELINUX_MODULE).text, std::regex("#[^\n]*"), "");
}

// The classes that it requires, and their permissions.
std::map<std::string, std::set<std::string>> classes_of_module() {
  const std::string text = text_of_module();
  std::map<std::string, std::set<std::string>> classes;
  const std::regex required(R"(\bclass\s+(\w+)\s+(\w+|\{[^}]*\});)");
  for (std::sregex_iterator one(text.begin(), text.end(), required), end; one != end; ++one) {
    for (const std::string& permission : words_of((*one)[2])) classes[(*one)[1]].insert(permission);
  }
  return classes;
}

// What it gives mysqld_t.
Rules rules_of_module() {
  const std::string text = text_of_module();
  const std::map<std::string, std::string> members = {{"ringroad_domain", "mysqld_t"},
                                                      {"ringroad_memory", "tmpfs_t"}};
  const auto member = [&](const std::string& name) {
    const auto found = members.find(name);
    return found == members.end() ? name : found->second;
  };
  Rules rules;
  const std::regex allow(R"(\ballow\s+(\w+)\s+(\w+|\{[^}]*\}):(\w+)\s+(\w+|\{[^}]*\});)");
  for (std::sregex_iterator rule(text.begin(), text.end(), allow), end; rule != end; ++rule) {
    const std::string source = member((*rule)[1]);
    for (const std::string& name : words_of((*rule)[2])) {
      const std::string target = name == "self" ? source : member(name);
      for (const std::string& permission : words_of((*rule)[4])) {
        rules[{source, target, (*rule)[3]}].insert(permission);
      }
    }
  }
  return rules;
}

// A host with an enforcing SELinux, where mysqld_t is process 4711 and what systemd makes of mysqld_exec_t.
class SelinuxHost final : public Host {
 public:
  explicit SelinuxHost(Rules allowed) : rules(std::move(allowed)), classes_(classes_of_module()) {}

  FileText read(const std::string& path) override {
    const auto found = files.find(path);
    if (found != files.end()) return {0, found->second};
    std::smatch part;
    if (std::regex_match(path, part, std::regex("/sys/fs/selinux/class/(\\w+)/index"))) {
      return number_in(classes_, part[1]);
    }
    if (std::regex_match(path, part, std::regex("/sys/fs/selinux/class/(\\w+)/perms/(\\w+)")) &&
        classes_.contains(part[1])) {
      std::map<std::string, int> permissions;
      for (const std::string& name : classes_[part[1]]) permissions[name] = 0;
      return number_in(permissions, part[2]);
    }
    return {ENOENT, {}};
  }
  FileText ask(const std::string& path, const std::string& question) override {
    if (may_ask != 0) return {may_ask, {}};
    const std::vector<std::string> words = split(question);
    if (words.size() != 3) return {EINVAL, {}};
    const std::string source = split(words[0], ":").at(2);
    const std::string target = split(words[1], ":").at(2);
    if (path == "/sys/fs/selinux/create") {
      return {0, target == "mysqld_exec_t" ? kDomain : "system_u:object_r:" + target + ":s0"};
    }
    if (path != "/sys/fs/selinux/access" || unknown_types.contains(target)) return {EINVAL, {}};
    unsigned allowed = 0;
    for (const auto& [name, permissions] : classes_) {
      if (read("/sys/fs/selinux/class/" + name + "/index").text != words[2]) continue;
      for (const std::string& permission : rules[{source, target, name}]) {
        const std::string number = read("/sys/fs/selinux/class/" + name + "/perms/" + permission).text;
        allowed |= 1U << (std::stoi(number) - 1);
      }
    }
    char answer[64];
    std::snprintf(answer, sizeof answer, "%x ffffffff 0 ffffffff 7 %x", allowed, permissive ? 1U : 0U);
    return {0, answer};
  }
  FolderNames list(const std::string&) override { return {ENOENT, {}}; }
  FileText link(const std::string&) override { return {ENOENT, {}}; }
  FileStatus status(const std::string&) override { return {ENOENT, 0, 0, 0}; }
  CommandResult run(const Command& command) override {
    CommandResult result;
    const std::string& name = command.words.front();
    if (name != "stat" && name != "systemctl") return result;
    result.end = CommandResult::End::kExited;
    result.out = name == "stat" ? "system_u:object_r:mysqld_exec_t:s0\n" : unit;
    return result;
  }
  ProgramFacts program(const ProgramPlace&) override { return {}; }
  void pass(std::chrono::milliseconds) override {}

  static inline const std::string kDomain = "system_u:system_r:mysqld_t:s0";
  Rules rules;
  std::map<std::string, std::string> files = {
      {"/sys/fs/selinux/enforce", "1"},
      {"/sys/fs/selinux/mls", "1"},
      {"/proc/1/attr/current", std::string("system_u:system_r:init_t:s0\0", 28)},
      {"/proc/4711/attr/current", kDomain + std::string(1, '\0')}};
  std::set<std::string> unknown_types;
  std::string unit;
  bool permissive = false;
  int may_ask = 0;

 private:
  // The place of the key, from 1.
  template <typename Map>
  static FileText number_in(const Map& map, const std::string& key) {
    const auto found = map.find(key);
    if (found == map.end()) return {ENOENT, {}};
    return {0, std::to_string(std::distance(map.begin(), found) + 1)};
  }

  std::map<std::string, std::set<std::string>> classes_;
};

std::vector<Finding> examine(Host& host, const Questions& questions, bool rdma = true) {
  const std::string rule = "[[rule]]\nname = \"a\"\nvia = \"rdma\"\nsubnet = \"10.0.0.0/8\"\n";
  Context context(host, questions,
                  policy::Policy::load_text("version = 1\n" + (rdma ? rule : std::string()), "p"));
  return run_checks(context, {"selinux"});
}

Questions process() {
  Questions questions;
  questions.pid = 4711;
  return questions;
}

TEST(SeLinux, ADomainWithTheRulesOfTheModuleLacksNothing) {
  SelinuxHost host(rules_of_module());
  EXPECT_THAT(examine(host, process()), Worst(Level::kOk, "mysqld_t may do what the library does"));
}

TEST(SeLinux, EachRuleOfTheModuleThatIsAskedForIsNamedWhereItIsMissing) {
  const Rules whole = rules_of_module();
  const std::map<Object, std::string> told = {
      {{"init_t", "mysqld_t", "process"}, "allow init_t mysqld_t:process { noatsecure rlimitinh };"},
      {{"mysqld_t", "mysqld_t", "netlink_tcpdiag_socket"},
       "allow mysqld_t self:netlink_tcpdiag_socket { create nlmsg_read read write };"},
      {{"mysqld_t", "tmpfs_t", "file"}, "allow mysqld_t tmpfs_t:file { getattr lock map read write };"},
      {{"mysqld_t", "infiniband_device_t", "chr_file"},
       "allow mysqld_t infiniband_device_t:chr_file { getattr ioctl map open read write };"},
      {{"mysqld_t", "nsfs_t", "file"}, "allow mysqld_t nsfs_t:file { getattr };"}};
  for (const auto& [object, rule] : told) {
    SelinuxHost host(whole);
    ASSERT_EQ(host.rules.erase(object), 1U) << rule;
    const std::vector<Finding> findings = examine(host, process());
    ASSERT_EQ(findings.size(), 1U) << texts(findings);
    EXPECT_EQ(findings[0].evidence, "missing: " + rule);
    EXPECT_EQ(findings[0].level, object[0] == "init_t" ? Level::kFail : Level::kWarn);
    EXPECT_THAT(findings[0].remedy, HasSubstr("typeattribute mysqld_t ringroad_domain;"));
  }
}

TEST(SeLinux, OnePermissionThatIsMissingIsNamedAlone) {
  SelinuxHost host(rules_of_module());
  host.rules[{"mysqld_t", "etc_t", "file"}].erase("watch");
  EXPECT_THAT(examine(host, process()), Worst(Level::kWarn, "missing: allow mysqld_t etc_t:file { watch };"));
}

TEST(SeLinux, WithoutTheModuleTheRemedyLoadsIt) {
  SelinuxHost host({});
  host.unknown_types = {"ringroad_runtime_t"};
  const std::vector<Finding> findings = examine(host, process());
  EXPECT_EQ(findings.size(), 5U) << texts(findings);
  EXPECT_EQ(worst(findings), Level::kFail);
  for (const Finding& finding : findings) {
    EXPECT_THAT(finding.remedy, HasSubstr("share/ringroad/selinux/ringroad-selinux load"));
    EXPECT_NE(finding.consequence, "");
  }
}

TEST(SeLinux, DevicesAreAskedForOnlyWhereARuleAllowsRdma) {
  SelinuxHost host(rules_of_module());
  host.rules.erase({"mysqld_t", "infiniband_device_t", "chr_file"});
  EXPECT_EQ(worst(examine(host, process(), false)), Level::kOk);
  EXPECT_EQ(worst(examine(host, process(), true)), Level::kWarn);
}

TEST(SeLinux, AProgramThatDoesNotRunIsJudgedByTheDomainThatItsStartLeadsTo) {
  SelinuxHost host(rules_of_module());
  EXPECT_THAT(examine(host, program("/usr/sbin/mysqld")), Worst(Level::kOk, "mysqld_t may do"));
  Questions unit;
  unit.unit = "mysqld";
  host.unit = "LoadState=loaded\nMainPID=0\nExecStart={ path=/usr/sbin/mysqld ; }\n";
  EXPECT_THAT(examine(host, unit), Worst(Level::kOk, "mysqld_t may do"));
  host.unit = "LoadState=loaded\nMainPID=4711\nExecStart={ path=/usr/sbin/mysqld ; }\n";
  const std::vector<Finding> running = examine(host, unit);
  ASSERT_EQ(running.size(), 1U);
  EXPECT_EQ(running[0].subject, "process 4711");
}

TEST(SeLinux, APermissiveDomainIsOk) {
  SelinuxHost host({});
  host.permissive = true;
  EXPECT_THAT(examine(host, process()), Worst(Level::kOk, "mysqld_t is permissive"));
}

TEST(SeLinux, WhatThePolicyHasNoWordForIsNotMissing) {
  SelinuxHost host(rules_of_module());
  host.rules.erase({"mysqld_t", "nsfs_t", "file"});
  host.unknown_types = {"nsfs_t"};
  EXPECT_EQ(worst(examine(host, process())), Level::kOk);
}

TEST(SeLinux, AKernelThatMayNotBeAskedLeavesItUnknown) {
  SelinuxHost host(rules_of_module());
  host.may_ask = EACCES;
  EXPECT_THAT(examine(host, process()), Worst(Level::kUnknown, "Permission denied"));
  SelinuxHost gone(rules_of_module());
  gone.files.erase("/proc/4711/attr/current");
  EXPECT_THAT(examine(gone, process()), Worst(Level::kUnknown, "its domain"));
}

TEST(SeLinux, ThatDoesNotEnforceIsOk) {
  SelinuxHost host({});
  host.files["/sys/fs/selinux/enforce"] = "0";
  EXPECT_THAT(examine(host, process()), Worst(Level::kOk, "no SELinux that enforces"));
}

TEST(SeLinux, IsRecordedAsItAnswered) {
  SelinuxHost host(rules_of_module());
  host.rules.erase({"mysqld_t", "nsfs_t", "file"});
  host.unknown_types = {"device_t"};
  const TempFolder folder;
  RecordingHost recorder(host, folder.path());
  const std::string before = texts(examine(recorder, process()));
  std::string why;
  ASSERT_TRUE(recorder.finish(why)) << why;
  RecordedHost copy(folder.path());
  EXPECT_EQ(texts(examine(copy, process())), before);
  EXPECT_THAT(before, HasSubstr("nsfs_t"));
}

}  // namespace
}  // namespace ringroad::cli::doctor
