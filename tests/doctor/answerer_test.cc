// What answers a peer's probe.

#include "cli/doctor/answerer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "cli/doctor/probe_socket.h"
#include "tests/doctor/support.h"

namespace ringroad::cli::doctor {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

Endpoint loopback(std::uint16_t port) {
  return {*Address::parse("127.0.0.1"), port};
}

// Free a moment ago.
std::uint16_t free_port() {
  sockaddr_storage name{};
  socklen_t length = loopback(0).to_sockaddr(name);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&name), length), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length), 0);
  close(fd);
  return ntohs(reinterpret_cast<sockaddr_in&>(name).sin_port);
}

// The server, not preloaded, with a limit of descriptors.
class Server {
 public:
  explicit Server(unsigned descriptors) : port_(free_port()) {
    write_file(folder_.file("p.toml"),
               "version = 1\n[[rule]]\nsubnet = \"127.0.0.0/8\"\nvia = \"rdma\"\n");
    // The shell itself needs some to lead its output elsewhere, so that comes first.
    const std::string script =
        "exec >" + folder_.file("out") + " 2>" + folder_.file("err") + "; ulimit -n " +
        std::to_string(descriptors) + "; export RINGROAD_POLICY=" + folder_.file("p.toml") +
        "; exec " + RINGROAD_COMMAND + " doctor --serve-answers 127.0.0.1:" + std::to_string(port_);
    pid_ = fork();
    if (pid_ == 0) {
      execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
      _exit(127);
    }
    const auto until = ProbeClock::now() + seconds(30);
    while (said("out").find("answering at") == std::string::npos && ProbeClock::now() < until) {
      std::this_thread::yield();
    }
  }
  ~Server() { stop(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The exit status; -1 where a signal ended it.
  int stop() {
    if (pid_ <= 0) return status_;
    kill(pid_, SIGTERM);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return status_;
  }

  int connected() const {
    sockaddr_storage name{};
    const socklen_t length = loopback(port_).to_sockaddr(name);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&name), length), 0) << strerror(errno);
    return fd;
  }

  std::string said(const std::string& file) const {
    std::ostringstream text;
    text << std::ifstream(folder_.file(file)).rdbuf();
    return text.str();
  }

  bool says(const std::string& file, const std::string& text) const {
    const auto until = ProbeClock::now() + seconds(30);
    while (said(file).find(text) == std::string::npos) {
      if (ProbeClock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  const TempFolder folder_;
  const std::uint16_t port_;
  pid_t pid_ = 0;
  int status_ = -1;
};

bool greeted(int fd) {
  set_socket_time(fd, SO_RCVTIMEO, seconds(30));
  char greeting[sizeof kGreeting - 1];
  return receive_all(fd, greeting, sizeof greeting) &&
         std::memcmp(greeting, kGreeting, sizeof greeting) == 0;
}

TEST(Answerer, ErrorsOfAcceptThatPassDoNotEndIt) {
  for (const int error : {EINTR, ECONNABORTED, EAGAIN, ENETDOWN, EPROTO, ENOPROTOOPT, EHOSTDOWN,
                          ENONET, EHOSTUNREACH, ENETUNREACH, EPERM, ETIMEDOUT}) {
    EXPECT_EQ(meaning_of(error), AcceptError::kRetry) << strerror(error);
  }
  for (const int error : {EMFILE, ENFILE, ENOBUFS, ENOMEM}) {
    EXPECT_EQ(meaning_of(error), AcceptError::kPause) << strerror(error);
  }
  for (const int error : {EBADF, EINVAL, ENOTSOCK}) {
    EXPECT_EQ(meaning_of(error), AcceptError::kEnd) << strerror(error);
  }
}

TEST(Answerer, GoesOnWhenDescriptorsComeBack) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP()
      << "the undefined-behaviour sanitizer looks at objects by way of a pipe, for which there is no number";
#endif
  // Fewer descriptors than it has places.
  Server server(12);
  std::vector<int> clients;
  while (clients.size() < 12) clients.push_back(server.connected());
  EXPECT_TRUE(server.says("err", "accept: Too many open files; trying again"));
  for (const int fd : clients) close(fd);
  const int fd = server.connected();
  EXPECT_TRUE(greeted(fd)) << server.said("err");
  close(fd);
  EXPECT_EQ(server.stop(), 0);
}

TEST(Answerer, TellsAPeerThatItHasNoPlaceFor) {
  constexpr std::size_t kPlaces = 16;
  Server server(256);
  std::vector<int> clients;
  while (clients.size() < kPlaces) {
    clients.push_back(server.connected());
    EXPECT_TRUE(greeted(clients.back()));
  }
  const int late = server.connected();
  EXPECT_FALSE(greeted(late));
  EXPECT_TRUE(server.says("out", "is refused: as many as can be are answered already"));
  std::size_t answered = 0;
  const std::string out = server.said("out");
  for (std::size_t at = 0; (at = out.find("is answered\n", at)) != std::string::npos; ++at) {
    ++answered;
  }
  EXPECT_EQ(answered, kPlaces) << out;
  close(late);
  for (const int fd : clients) close(fd);
}

TEST(Answerer, APeerThatDripsItsBytesHoldsAPlaceForNoLongerThanItsTime) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  std::atomic<bool> done{false};
  std::thread server([&] {
    converse(ends[1], milliseconds(300));
    done = true;
    shutdown(ends[1], SHUT_RDWR);
  });
  EXPECT_TRUE(greeted(ends[0]));
  const std::uint32_t length = htonl(kLongestMessage);
  EXPECT_TRUE(send_all(ends[0], reinterpret_cast<const char*>(&length), sizeof length));
  // Each byte comes sooner than one call would give up.
  set_socket_time(ends[0], SO_RCVTIMEO, milliseconds(10));
  const auto until = ProbeClock::now() + seconds(20);
  char byte = 0;
  while (!done && ProbeClock::now() < until) {
    if (send(ends[0], &byte, 1, MSG_NOSIGNAL) != 1) break;
    if (recv(ends[0], &byte, 1, 0) == 0) break;
  }
  EXPECT_LT(ProbeClock::now(), until);
  shutdown(ends[0], SHUT_RDWR);
  server.join();
  close(ends[0]);
  close(ends[1]);
}

TEST(ProbeSocket, ASignalDoesNotEndAMessage) {
  struct sigaction action {};
  struct sigaction before {};
  static std::atomic<int> caught{0};
  action.sa_handler = [](int) { ++caught; };  // without SA_RESTART
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  std::atomic<bool> got{false};
  std::atomic<bool> over{false};
  char text[2] = {};
  std::thread receiver([&] {
    got = receive_all(ends[1], text, sizeof text);
    over = true;
  });
  while (caught < 20 && !over) {
    pthread_kill(receiver.native_handle(), SIGUSR1);
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_TRUE(send_all(ends[0], "ok", sizeof text));
  receiver.join();
  EXPECT_TRUE(got);
  EXPECT_EQ(std::string(text, sizeof text), "ok");
  sigaction(SIGUSR1, &before, nullptr);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace ringroad::cli::doctor
