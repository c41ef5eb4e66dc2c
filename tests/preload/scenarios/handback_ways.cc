#include "tests/preload/scenarios/handback_ways.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace ringroad::test {
namespace {

void wait_for(const Held& h, pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const int how = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  h.a.log("the heir ended with %d", h.reset_will_do && how == 3 ? 0 : how);
}

// ---- The heir as a program that the library is not in

struct Words {
  std::vector<std::string> words;
  std::vector<std::string> variables;
  std::vector<char*> argv;
  std::vector<char*> envp;

  explicit Words(std::vector<std::string> all) : words(std::move(all)) {
    for (char** v = environ; *v != nullptr; ++v) {
      if (std::strncmp(*v, "LD_PRELOAD=", 11) != 0) variables.emplace_back(*v);
    }
    for (std::string& word : words) argv.push_back(word.data());
    for (std::string& variable : variables) envp.push_back(variable.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
  }
};

std::string self() {
  char path[512] = {};
  return ::readlink("/proc/self/exe", path, sizeof path - 1) > 0 ? path : "";
}

std::vector<std::string> numbers(const Held& h) {
  return {std::to_string(h.received), std::to_string(h.sent), std::to_string(h.total),
          h.silent ? "silent" : "speaks"};
}

Words duplex_words(const Held& h, int in, int out) {
  std::vector<std::string> words{self(), "--duplex", std::to_string(in),
                                 std::to_string(h.silent ? -1 : out)};
  for (const std::string& number : numbers(h)) words.push_back(number);
  return Words(words);
}

std::string command(const Held& h, int in, int out) {
  std::string line = "exec env -u LD_PRELOAD";
  for (const std::string& word : duplex_words(h, in, out).words) line += " " + word;
  return line;
}

}  // namespace

void fork_and_serve(Held& h) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(h.use(h.fd, h.fd));
  ::close(h.fd);
  wait_for(h, child);
}

void fork_and_the_child_reads(Held& h) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(h.use(h.fd, -1));
  h.use(-1, h.fd);
  ::close(h.fd);
  wait_for(h, child);
}

void fork_and_the_child_writes(Held& h) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(h.use(-1, h.fd));
  h.use(h.fd, -1);
  ::close(h.fd);
  wait_for(h, child);
}

void fork_and_the_parent_goes_on(Held& h) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  wait_for(h, child);
  h.use(h.fd, h.fd);
  ::close(h.fd);
}

void fork_twice(Held& h) {
  const pid_t child = ::fork();
  if (child == 0) {
    const pid_t grandchild = ::fork();
    if (grandchild == 0) ::_exit(h.use(h.fd, h.fd));
    ::close(h.fd);
    int status = 1;
    ::waitpid(grandchild, &status, 0);
    ::_exit(status == 0 ? 0 : 1);
  }
  ::close(h.fd);
  wait_for(h, child);
}

void become_a_daemon(Held& h) {
  int told[2];
  if (::pipe2(told, O_CLOEXEC) != 0) return;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::daemon(1, 1) != 0) ::_exit(1);
    const char answer = h.use(h.fd, h.fd) == 0 ? '+' : '-';
    ::_exit(::write(told[1], &answer, 1) == 1 ? 0 : 1);
  }
  ::close(h.fd);
  ::close(told[1]);
  wait_for(h, child);
  char answer = '?';
  if (::read(told[0], &answer, 1) < 0) answer = '!';
  h.a.log("the daemon: %c", answer);
  ::close(told[0]);
}

[[noreturn]] void as_inetd_does(Held& h) {
  Words words = duplex_words(h, 0, 1);
  ::dup2(h.fd, 0);
  ::dup2(h.fd, 1);
  ::execve(words.argv[0], words.argv.data(), words.envp.data());
  ::_exit(127);
}

void fork_dup2_and_exec(Held& h) {
  const pid_t child = ::fork();
  if (child == 0) as_inetd_does(h);
  ::close(h.fd);
  wait_for(h, child);
}

void fork_use_and_exec(Held& h) {
  const pid_t child = ::fork();
  if (child == 0) {
    // Its parent has nothing to do with the connection any more, and so it may be on a channel again.
    char byte;
    if (h.sent < h.total && ::send(h.fd, patterned(h.sent, 1).data(), 1, MSG_DONTWAIT) == 1) ++h.sent;
    if (h.more && ::recv(h.fd, &byte, 1, 0) == 1) ++h.received;
    as_inetd_does(h);
  }
  ::close(h.fd);
  wait_for(h, child);
}

void fork_and_exec_a_shell(Held& h) {
  Words words({"/bin/sh", "-c", command(h, 0, 1)});
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(h.fd, 0);
    ::dup2(h.fd, 1);
    ::execve(words.argv[0], words.argv.data(), words.envp.data());
    ::_exit(127);
  }
  ::close(h.fd);
  wait_for(h, child);
}

void vfork_dup2_and_exec(Held& h) {
  Words words = duplex_words(h, 0, 1);
  const pid_t child = ::vfork();
  if (child == 0) {
    ::dup2(h.fd, 0);
    ::dup2(h.fd, 1);
    ::execve(words.argv[0], words.argv.data(), words.envp.data());
    ::_exit(127);
  }
  ::close(h.fd);
  wait_for(h, child);
}

void spawn_with_file_actions(Held& h) {
  Words words = duplex_words(h, 0, 1);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, h.fd, 0);
  ::posix_spawn_file_actions_adddup2(&actions, h.fd, 1);
  pid_t child = -1;
  h.a.result("posix_spawn", ::posix_spawn(&child, words.argv[0], &actions, nullptr,
                                          words.argv.data(), words.envp.data()));
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(h.fd);
  wait_for(h, child);
}

void spawn_and_inherit(Held& h) {
  ::fcntl(h.fd, F_SETFD, 0);
  Words words = duplex_words(h, h.fd, h.fd);
  pid_t child = -1;
  h.a.result("posix_spawn", ::posix_spawn(&child, words.argv[0], nullptr, nullptr,
                                          words.argv.data(), words.envp.data()));
  ::close(h.fd);
  wait_for(h, child);
}

void run_by_system(Held& h) {
  ::fcntl(h.fd, F_SETFD, 0);
  h.a.log("system: %d", std::system(command(h, h.fd, h.fd).c_str()));
  ::close(h.fd);
}

void run_by_popen(Held& h) {
  ::fcntl(h.fd, F_SETFD, 0);
  std::FILE* pipe = ::popen(command(h, h.fd, h.fd).c_str(), "r");
  ::close(h.fd);
  if (pipe != nullptr) h.a.log("pclose: %d", ::pclose(pipe));
}

void pass_on(Held& h, bool many) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return;
  std::vector<std::string> line{self(), "--receive", std::to_string(pair[1])};
  for (const std::string& number : numbers(h)) line.push_back(number);
  Words words(line);
  pid_t child = -1;
  h.a.result("posix_spawn", ::posix_spawn(&child, words.argv[0], nullptr, nullptr,
                                          words.argv.data(), words.envp.data()));
  char byte = 'x';
  iovec piece{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  mmsghdr message{};
  message.msg_hdr.msg_iov = &piece;
  message.msg_hdr.msg_iovlen = 1;
  message.msg_hdr.msg_control = control;
  message.msg_hdr.msg_controllen = sizeof control;
  cmsghdr* part = CMSG_FIRSTHDR(&message.msg_hdr);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(part), &h.fd, sizeof h.fd);
  if (many) {
    h.a.result("sendmmsg", ::sendmmsg(pair[0], &message, 1, 0));
  } else {
    h.a.result("sendmsg", ::sendmsg(pair[0], &message.msg_hdr, 0));
  }
  ::close(h.fd);
  ::close(pair[0]);
  ::close(pair[1]);
  wait_for(h, child);
}

void pass_by_sendmsg(Held& h) { pass_on(h, false); }
void pass_by_sendmmsg(Held& h) { pass_on(h, true); }

}  // namespace ringroad::test
