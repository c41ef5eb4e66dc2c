#include "tests/cli/support.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "tests/file_name_here.h"

namespace ringroad::cli {
namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

std::string read_all(int fd) {
  std::string text;
  char part[4096];
  for (ssize_t n; (n = read(fd, part, sizeof part)) > 0;) {
    text.append(part, static_cast<std::size_t>(n));
  }
  close(fd);
  return text;
}

}  // namespace

Endpoint endpoint(const char* address, std::uint16_t port) {
  Endpoint result;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  if (inet_pton(AF_INET, address, &v4.sin_addr) == 1) {
    Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&v4), sizeof v4, result);
    return result;
  }
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  require(inet_pton(AF_INET6, address, &v6.sin6_addr) == 1, address);
  Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&v6), sizeof v6, result);
  return result;
}

TempFolder::TempFolder() : path_("/tmp/ringroad-cli-test-XXXXXX") {
  require(mkdtemp(path_.data()) != nullptr, "mkdtemp");
  require(chmod(path_.c_str(), 0755) == 0, "chmod");
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_file(const std::string& path, const std::string& content, mode_t mode) {
  std::ofstream(path, std::ios::binary) << content;
  require(chmod(path.c_str(), mode) == 0, "chmod");
}

std::unique_ptr<stats::Segment> make_segment(const TempFolder& folder, const char* program) {
  std::unique_ptr<stats::Segment> segment(stats::Segment::create(folder.path().c_str(), program));
  require(segment != nullptr, "Segment::create");
  return segment;
}

std::string own_segment(const TempFolder& folder) { return folder.file(test::file_name_here(getpid())); }

void hand_over(const TempFolder& folder, pid_t pid,
               const std::function<void(stats::SegmentHeader&)>& change) {
  const std::string path = folder.file(test::file_name_here(pid));
  require(pid == getpid() || rename(own_segment(folder).c_str(), path.c_str()) == 0, "rename");
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  require(fd >= 0, "open");
  void* memory = mmap(nullptr, stats::kHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  require(memory != MAP_FAILED, "mmap");
  auto& header = *static_cast<stats::SegmentHeader*>(memory);
  header.pid = static_cast<std::uint32_t>(pid);
  if (pid != getpid()) header.start_ticks = 0;
  if (change) change(header);
  munmap(memory, stats::kHeaderBytes);
}

stats::StreamSlot* add_stream(stats::Segment& segment, std::uint64_t id, const char* local,
                              std::uint16_t local_port, const char* remote,
                              std::uint16_t remote_port) {
  stats::StreamSlot* slot = segment.acquire();
  require(slot != nullptr, "Segment::acquire");
  stats::Segment::begin(*slot);
  slot->id = id;
  slot->local = endpoint(local, local_port);
  slot->remote = endpoint(remote, remote_port);
  stats::Segment::end(*slot);
  return slot;
}

Child::Child() : pid_(fork()) {
  require(pid_ >= 0, "fork");
  if (pid_ == 0) {
    for (;;) pause();
  }
}

Child::~Child() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

pid_t ended_pid() {
  const pid_t pid = fork();
  require(pid >= 0, "fork");
  if (pid == 0) _exit(0);
  waitpid(pid, nullptr, 0);
  return pid;
}

Result ringroad(const std::vector<std::string>& arguments,
                const std::vector<std::string>& environment) {
  std::vector<std::string> words = {RINGROAD_COMMAND};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    // What the tester's shell has set would change what is tested.
    if (std::strncmp(*variable, "RINGROAD_", 9) != 0) variables.emplace_back(*variable);
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);

  int out[2];
  int err[2];
  require(pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0, "pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  errno = error;
  require(error == 0, argv[0]);

  Result result;
  std::thread reader([&] { result.err = read_all(err[0]); });
  result.out = read_all(out[0]);
  reader.join();
  int status = 0;
  waitpid(pid, &status, 0);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

std::string elf_file(bool has_interpreter, Elf64_Half type,
                     const std::function<void(Elf64_Ehdr&)>& change) {
  Elf64_Ehdr header;
  std::ifstream own("/proc/self/exe", std::ios::binary);
  own.read(reinterpret_cast<char*>(&header), sizeof header);
  header.e_type = type;
  header.e_phoff = sizeof header;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 2;
  if (change) change(header);
  Elf64_Phdr segments[2] = {};
  segments[0].p_type = PT_LOAD;
  segments[1].p_type = has_interpreter ? PT_INTERP : PT_NOTE;
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) +
         std::string(reinterpret_cast<const char*>(segments), sizeof segments);
}

}  // namespace ringroad::cli
