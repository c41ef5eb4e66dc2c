// Programs, processes and what confines them.

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cli/doctor/program_facts.h"
#include "tests/doctor/support.h"

namespace ringroad::cli::doctor {
namespace {

using testing::HasSubstr;

// An ELF program whose section headers name these sections.
std::string with_section(const std::string& name) {
  std::string names = std::string("\0.shstrtab\0", 11) + name + std::string("\0", 1);
  std::string file = elf_file(false);
  Elf64_Ehdr header;
  std::memcpy(&header, file.data(), sizeof header);
  const std::size_t names_at = file.size();
  file += names;
  header.e_shoff = file.size();
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 2;
  header.e_shstrndx = 0;
  Elf64_Shdr sections[2] = {};
  sections[0].sh_name = 1;
  sections[0].sh_offset = names_at;
  sections[0].sh_size = names.size();
  sections[1].sh_name = 11;
  std::memcpy(file.data(), &header, sizeof header);
  return file + std::string(reinterpret_cast<const char*>(sections), sizeof sections);
}

ProgramFacts inspect(const std::string& path) { return inspect_program(path, Root(), ""); }

Questions program(const std::string& path) {
  Questions questions;
  questions.program = path;
  return questions;
}

ProgramFacts usual() {
  ProgramFacts facts;
  facts.file = "/opt/p";
  facts.is_elf = facts.own_machine = true;
  facts.loader = "/lib64/ld-linux-x86-64.so.2";
  return facts;
}

std::vector<Finding> judge(const ProgramFacts& facts) {
  Tree tree;
  tree.write("/programs/%opt%p", to_text(facts));
  return tree.check("program", program("/opt/p"));
}

TEST(ProgramFile, OfGoIsToldByItsSections) {
  const TempFolder folder;
  for (const char* name : {".go.buildinfo", ".note.go.buildid", ".gopclntab"}) {
    write_file(folder.file("p"), with_section(name), 0755);
    EXPECT_TRUE(inspect(folder.file("p")).go) << name;
  }
  write_file(folder.file("p"), with_section(".text"), 0755);
  const ProgramFacts facts = inspect(folder.file("p"));
  EXPECT_FALSE(facts.go);
  EXPECT_EQ(facts.loader, "");
  EXPECT_TRUE(facts.is_elf && facts.own_machine);
}

TEST(ProgramFile, NamesItsLoaderAndBits) {
  const ProgramFacts own = inspect("/proc/self/exe");
  EXPECT_THAT(own.loader, HasSubstr("/ld-linux"));
  EXPECT_FALSE(own.go || own.set_user);
  const TempFolder folder;
  write_file(folder.file("s"), with_section(".text"), 04755);
  EXPECT_TRUE(inspect(folder.file("s")).set_user);
}

TEST(ProgramFile, AScriptIsJudgedByItsInterpreter) {
  const TempFolder folder;
  write_file(folder.file("script"), "#!/bin/sh -e\n", 0755);
  const ProgramFacts facts = inspect(folder.file("script"));
  EXPECT_EQ(facts.file, "/bin/sh");
  EXPECT_TRUE(facts.is_elf);
}

TEST(ProgramFile, ThatIsBrokenIsNoProgramAndNoCrash) {
  const TempFolder folder;
  const std::string whole = with_section(".go.buildinfo");
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    write_file(folder.file("p"), whole.substr(0, size), 0755);
    EXPECT_FALSE(inspect(folder.file("p")).go && size < sizeof(Elf64_Ehdr));
  }
  std::string wild = whole;
  Elf64_Ehdr header;
  std::memcpy(&header, wild.data(), sizeof header);
  header.e_shoff = ~0ULL - 3;
  header.e_phoff = ~0ULL - 3;
  std::memcpy(wild.data(), &header, sizeof header);
  write_file(folder.file("p"), wild, 0755);
  EXPECT_FALSE(inspect(folder.file("p")).go);
  EXPECT_EQ(inspect(folder.file("none")).error, ENOENT);
}

TEST(ProgramFacts, SurviveBeingWrittenDown) {
  ProgramFacts facts = usual();
  facts.go = facts.capabilities = facts.foreign_libc = true;
  facts.libc = "/l";
  facts.libc_version = "a";
  facts.needed = facts.lacks = "b";
  facts.lacks_file = "/f";
  facts.owner = 7;
  const ProgramFacts back = program_facts_from_text(to_text(facts));
  EXPECT_EQ(to_text(back), to_text(facts));
  EXPECT_EQ(program_facts_from_text("[").error, EINVAL);
  EXPECT_EQ(program_facts_from_text("{\"error\":\"x\"}").error, EINVAL);
}

TEST(ProgramCheck, TellsWhatCannotBePreloaded) {
  EXPECT_EQ(worst(judge(usual())), Level::kOk);
  ProgramFacts facts = usual();
  facts.loader.clear();
  EXPECT_THAT(judge(facts), Worst(Level::kFail, "linked statically"));
  facts.go = true;
  EXPECT_THAT(judge(facts), Worst(Level::kFail, "a Go program, linked statically"));
  facts = usual();
  facts.go = true;
  EXPECT_THAT(judge(facts), Worst(Level::kFail, "a Go program"));
  facts = usual();
  facts.loader = "/lib/ld-musl-x86_64.so.1";
  facts.foreign_libc = true;
  EXPECT_THAT(judge(facts), Worst(Level::kFail, "musl"));
  facts = usual();
  facts.own_machine = false;
  EXPECT_THAT(judge(facts), Worst(Level::kFail, "another machine"));
  facts = usual();
  facts.set_group = true;
  EXPECT_THAT(judge(facts), Worst(Level::kFail, "setuid or setgid"));
  facts = usual();
  facts.is_elf = false;
  EXPECT_THAT(judge(facts), Worst(Level::kUnknown, "no ELF file"));
}

TEST(ProgramCheck, TellsTheVersionsOfBothSides) {
  ProgramFacts facts = usual();
  facts.libc = facts.lacks_file = "/lib64/libc.so.6";
  facts.libc_version = "GLIBC_2.12";
  facts.needed = "GLIBC_2.10";
  const std::vector<Finding> fine = judge(facts);
  EXPECT_EQ(worst(fine), Level::kOk);
  EXPECT_THAT(texts(fine),
              HasSubstr("/lib64/libc.so.6 has up to GLIBC_2.12, the library needs GLIBC_2.10"));
  facts.lacks = facts.needed = "GLIBC_2.17";
  const std::vector<Finding> old = judge(facts);
  EXPECT_THAT(old, Worst(Level::kFail, "without GLIBC_2.17"));
  EXPECT_THAT(old, Worst(Level::kFail, "GLIBC_2.12"));
  EXPECT_THAT(texts(old), HasSubstr("the loader ends it before it starts"));
}

// What is asked about programs; all else is as in the good tree.
class AskedHost final : public Host {
 public:
  FileText read(const std::string& path) override { return good_.read(path); }
  FolderNames list(const std::string& path) override { return good_.list(path); }
  FileText link(const std::string& path) override {
    if (path == "/proc/4711/root" && !chroot_.empty()) return {0, chroot_};
    if (path != "/proc/4711/exe") return good_.link(path);
    return hidden_ ? FileText{EACCES, {}} : FileText{0, chroot_ + "/opt/p"};
  }
  FileStatus status(const std::string& path) override { return good_.status(path); }
  FileText ask(const std::string& path, const std::string& question) override {
    return good_.ask(path, question);
  }
  CommandResult run(const Command& command) override {
    CommandResult result = good_.run(command);
    if (command.words.front() != "systemctl") return result;
    result.end = CommandResult::End::kExited;
    result.out = "LoadState=loaded\nRootDirectory=/srv\nExecStart={ path=/opt/p ; }\n";
    return result;
  }
  ProgramFacts program(const ProgramPlace& place) override {
    asked_ += place.root + " " + place.name + " " + place.library;
    ProgramFacts facts = usual();
    facts.error = error_;
    return facts;
  }
  void pass(std::chrono::milliseconds) override {}

  std::vector<Finding> examine(const Questions& questions) {
    Context context(*this, questions, policy::Policy::load({}));
    return run_checks(context, {"program"});
  }

  std::string asked_;
  std::string chroot_;
  bool hidden_ = false;
  int error_ = 0;

 private:
  const Tree tree_{""};
  RecordedHost good_{tree_.path()};
};

TEST(ProgramCheck, LooksBelowTheRootOfTheProcessOrUnit) {
  AskedHost process;
  Questions questions;
  questions.pid = 4711;
  questions.library = "/x.so";
  process.examine(questions);
  EXPECT_EQ(process.asked_, "/proc/4711/root /opt/p /x.so");
  AskedHost confined;
  confined.chroot_ = "/srv/jail";
  confined.examine(questions);
  EXPECT_EQ(confined.asked_, "/proc/4711/root /opt/p /x.so");
  AskedHost unit;
  questions.unit = "db";
  unit.examine(questions);
  EXPECT_EQ(unit.asked_, "/srv /opt/p /x.so");
  AskedHost named;
  questions.program = "tool";
  named.examine(questions);
  EXPECT_EQ(named.asked_, "/ tool /x.so");
}

TEST(ProgramCheck, ARootThatOnlyRootMayEnterIsUnknown) {
  AskedHost host;
  host.error_ = EACCES;
  Questions questions;
  questions.pid = 4711;
  const std::vector<Finding> findings = host.examine(questions);
  EXPECT_THAT(findings, Worst(Level::kUnknown, "Permission denied"));
  EXPECT_THAT(texts(findings), HasSubstr("run this as root"));
  AskedHost hidden;
  hidden.hidden_ = true;
  EXPECT_THAT(hidden.examine(questions), Worst(Level::kUnknown, "exe: Permission denied"));
}

TEST(ProgramCheck, SetuidToTheUserWhoStartsItIsNone) {
  ProgramFacts facts = usual();
  facts.set_user = true;
  facts.owner = 1000;  // the user that runs it, in this tree
  EXPECT_EQ(worst(judge(facts)), Level::kOk);
  facts.owner = 0;
  EXPECT_THAT(judge(facts), Worst(Level::kFail, "setuid"));
}

TEST(ProgramCheck, SetuidIsJudgedForTheUserOfTheUnit) {
  ProgramFacts facts = usual();
  facts.set_user = true;
  facts.owner = 1000;  // the user that runs it, in this tree
  Tree tree;
  tree.write("/programs/%opt%p", to_text(facts));
  Questions questions = program("/opt/p");
  questions.unit = "mariadb";  // mysql's
  EXPECT_THAT(tree.check("program", questions), Worst(Level::kFail, "setuid"));
}

TEST(ProgramCheck, OneThatIsNotThereIsUnknown) {
  EXPECT_THAT(Tree().check("program", program("/no/such")), Worst(Level::kUnknown, "No such file"));
}

TEST(ProgramCheck, OfAProcessIsItsExecutable) {
  Tree tree("bad");
  tree.meta("link /proc/4711/exe /usr/sbin/mariadbd");
  Questions questions;
  questions.pid = 4711;
  EXPECT_THAT(tree.check("program", questions), Worst(Level::kFail, "file capabilities"));
}

TEST(Process, ThatIsGoneOrForeignIsTold) {
  Questions questions;
  questions.pid = 99;
  EXPECT_THAT(Tree().check("process", questions), Worst(Level::kFail, "No such file or directory"));
  Tree foreign;
  foreign.meta("error /proc/4711/maps EACCES");
  questions.pid = 4711;
  EXPECT_THAT(foreign.check("process", questions), Worst(Level::kUnknown, "Permission denied"));
}

TEST(Process, WithAReplacedLibraryIsAWarning) {
  Tree tree;
  tree.write("/proc/4711/maps", "7f00-7f01 r-xp 0 08:01 77 /usr/lib/libringroad.so (deleted)\n");
  Questions questions;
  questions.pid = 4711;
  EXPECT_THAT(tree.check("process", questions), Worst(Level::kWarn, "replaced on disk"));
}

}  // namespace
}  // namespace ringroad::cli::doctor
