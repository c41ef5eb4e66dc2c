// faulty_program KIND STEP DESCRIPTORS MAPPINGS: a connection to oneself, both of whose ends are promoted,
// while one system call of the library's own threads goes wrong: the STEP-th of those that can. KIND is
//
//   fail   it is not made, and fails as it may
//   lose   it is not made, and seems to have been: messages, but not TCP's
//   late   it is made a third of a second later
//
// The kernel asks a thread of this program before each such call (seccomp_unotify(2)); the program's own
// thread is let alone. Then it connects to another of its listeners until nothing is in the way of
// that connection's promotion any more, and prints
//
//   steps N           so many calls of the library's threads were asked for, until the first was connected
//   fault NAME        what was done to it; not there when there were not so many
//   promoted N        ends of the first connection that are on a channel, and
//   then promoted N   of the last
//   left D M          descriptors and shared mappings when all is closed; waits for as few as it is told
//
// Exit status: 0 when every byte came as it was sent, 1 with a word on standard error, 3 when this kernel
// cannot do it.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cli/segment_reader.h"
#include "rsocket-core/base/sys.h"

namespace {

enum ExitStatus { kWrong = 1, kNotHere = 3 };

[[noreturn]] void fail(const char* what, int status = kWrong) {
  std::fprintf(stderr, "%s: %s\n", what, strerrordesc_np(errno));
  std::_Exit(status);
}

struct Call {
  int number;
  const char* name;
  int error;  // with which it may fail
};

// What setting a channel up is made of, and can fail without anybody's fault. Not what cannot: a write(2) to
// an eventfd, epoll_ctl(2) that takes something out.
constexpr Call kCalls[] = {
    {SYS_mmap, "mmap", ENOMEM},
    {SYS_memfd_create, "memfd_create", EMFILE},
    {SYS_ftruncate, "ftruncate", ENOMEM},
    {SYS_fcntl, "fcntl", EMFILE},
    {SYS_socket, "socket", EMFILE},
    {SYS_bind, "bind", EADDRINUSE},
    {SYS_listen, "listen", ENOBUFS},
    {SYS_connect, "connect", ECONNREFUSED},
    {SYS_accept4, "accept4", EMFILE},
    {SYS_sendto, "sendto", ENOBUFS},
    {SYS_sendmsg, "sendmsg", ENOBUFS},
    {SYS_recvfrom, "recvfrom", ENOMEM},
    {SYS_recvmsg, "recvmsg", ENOMEM},
    {SYS_epoll_create1, "epoll_create1", EMFILE},
    {SYS_epoll_ctl, "epoll_ctl", ENOSPC},
    {SYS_eventfd2, "eventfd2", EMFILE},
    {SYS_timerfd_create, "timerfd_create", EMFILE},
    {SYS_inotify_init1, "inotify_init1", EMFILE},
    {SYS_pidfd_open, "pidfd_open", EMFILE},
    {SYS_dup3, "dup3", EBUSY},
    {SYS_openat, "openat", ENFILE},
    // Of RDMA's devices only.
    {SYS_write, "write", ENOMEM},
    {SYS_ioctl, "ioctl", ENOMEM},
};

const Call* find_call(int number) {
  for (const Call& call : kCalls) {
    if (call.number == number) return &call;
  }
  return nullptr;
}

bool holds(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// Whether what stands behind the descriptor has `part` in its name.
bool is_of(std::uint64_t fd, std::string_view part) {
  char path[64];
  char target[256] = {};
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", static_cast<int>(fd));
  return readlink(path, target, sizeof target - 1) > 0 && holds(target, part);
}

// Not the loading of libibverbs' drivers, which it tries once in a process.
bool is_library(const char* path) {
  return holds(path, "libibverbs") || holds(path, ".so") || holds(path, "/lib");
}

bool is_tcp(std::uint64_t fd) {
  int domain = 0;
  socklen_t length = sizeof domain;
  return ringroad::sys::getsockopt(static_cast<int>(fd), SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 &&
         (domain == AF_INET || domain == AF_INET6);
}

// A TCP connection that is well fails in no other way.
int error_of(const seccomp_data& data) {
  switch (data.nr) {
    case SYS_sendto:
    case SYS_sendmsg:
    case SYS_recvfrom:
    case SYS_recvmsg:
      if (is_tcp(data.args[0])) return EAGAIN;
      break;
    default:
      break;
  }
  return find_call(data.nr)->error;
}

bool can_fail(const seccomp_data& data) {
  switch (data.nr) {
    case SYS_fcntl:
      return static_cast<int>(data.args[1]) == F_DUPFD_CLOEXEC;
    case SYS_epoll_ctl:
      return static_cast<int>(data.args[1]) == EPOLL_CTL_ADD;
    case SYS_openat:
      return !is_library(reinterpret_cast<const char*>(data.args[1]));
    case SYS_write:
      // Not librdmacm's first, at a number of its own: it leaves that open when this fails.
      return is_of(data.args[0], "infiniband") &&
             data.args[0] >= ringroad::sys::kPrivateDescriptorBase;
    case SYS_ioctl:
      return is_of(data.args[0], "infiniband");
    case SYS_mmap:
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
      // Their own allocators end the process.
      return (data.args[3] & MAP_SHARED) != 0;
#else
      return (data.args[3] & MAP_ANONYMOUS) != 0 || !is_of(data.args[4], ".so");
#endif
    default:
      return true;
  }
}

// TCP loses nothing, and no other call can seem to have been made.
bool can_be_lost(const seccomp_data& data) {
  return (data.nr == SYS_sendto || data.nr == SYS_sendmsg) && !is_tcp(data.args[0]);
}

std::int64_t lost_result(const seccomp_data& data) {
  if (data.nr == SYS_sendto) return static_cast<std::int64_t>(data.args[2]);
  const auto* message = reinterpret_cast<const msghdr*>(data.args[1]);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < message->msg_iovlen; ++i) bytes += message->msg_iov[i].iov_len;
  return static_cast<std::int64_t>(bytes);
}

using Clock = std::chrono::steady_clock;
constexpr auto kLate = std::chrono::milliseconds(333);
// A promotion that fails over RDMA takes five seconds, and a pause follows.
constexpr auto kPatience = std::chrono::seconds(30);

class Warden {
 public:
  Warden(std::string_view kind, unsigned step) : kind_(kind), step_(step) {}

  // From here on this thread and those that it makes are asked for.
  void begin() {
    std::vector<sock_filter> filter;
    const auto add = [&](std::uint16_t code, std::uint32_t k, std::uint8_t yes, std::uint8_t no) {
      filter.push_back(sock_filter{code, yes, no, k});
    };
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr), 0, 0);
    std::uint8_t left = std::size(kCalls);
    for (const Call& call : kCalls) {
      add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call.number), left, 0);
      --left;
    }
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    add(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF, 0, 0);
    const sock_fprog program{static_cast<std::uint16_t>(filter.size()), filter.data()};
    thread_ = std::thread([this] { run(); });
    let_alone();
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("PR_SET_NO_NEW_PRIVS", kNotHere);
    // By a call of its own: from a program that filters its system calls the library withdraws.
    const long fd = ringroad::sys::call(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                                        SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (fd < 0) fail("seccomp", kNotHere);
    listener_.store(static_cast<int>(fd));
    listener_.notify_one();
  }

  // The calling thread is the program's; of two the last ones are known.
  void let_alone() { program_threads_[let_alone_++ == 0 ? 0 : 1] = gettid(); }

  void stop_counting() {
    connected_.store(true);
    std::printf("steps %u\n", steps_.load());
    if (const char* name = fault_.load(); name != nullptr) std::printf("fault %s\n", name);
  }

 private:
  // Makes no use of what the threads that it lets wait might hold.
  void run() {
    listener_.wait(-1);
    const int fd = listener_.load();
    seccomp_notif late{};
    bool is_late = false;
    Clock::time_point late_until;
    for (;;) {
      pollfd waits{fd, POLLIN, 0};
      const int ready = poll(&waits, 1, is_late ? 1 : -1);
      if (is_late && Clock::now() > late_until) {
        let_go(fd, late);
        is_late = false;
      }
      if (ready <= 0) continue;
      seccomp_notif asked{};
      if (ioctl(fd, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) continue;
      const bool counts = !connected_.load() && !is_programs(asked.pid) && can_fail(asked.data) &&
                          (kind_ != "lose" || can_be_lost(asked.data));
      if (!counts || steps_.fetch_add(1) + 1 != step_) {
        let_go(fd, asked);
        continue;
      }
      const Call* call = find_call(asked.data.nr);
      fault_.store(call->name);
      if (kind_ == "late") {
        late = asked;
        is_late = true;
        late_until = Clock::now() + kLate;
        continue;
      }
      seccomp_notif_resp answer{};
      answer.id = asked.id;
      if (kind_ == "fail") {
        answer.error = -error_of(asked.data);
      } else {
        answer.val = lost_result(asked.data);
      }
      ioctl(fd, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
  }

  bool is_programs(std::uint32_t thread) const {
    return thread == static_cast<std::uint32_t>(program_threads_[0].load()) ||
           thread == static_cast<std::uint32_t>(program_threads_[1].load());
  }

  static void let_go(int fd, const seccomp_notif& asked) {
    seccomp_notif_resp answer{};
    answer.id = asked.id;
    answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    ioctl(fd, SECCOMP_IOCTL_NOTIF_SEND, &answer);
  }

  const std::string_view kind_;
  const unsigned step_;
  std::array<std::atomic<pid_t>, 2> program_threads_{};
  std::atomic<unsigned> let_alone_{0};
  std::thread thread_;
  std::atomic<int> listener_{-1};
  std::atomic<bool> connected_{false};
  std::atomic<unsigned> steps_{0};
  std::atomic<const char*> fault_{nullptr};
};

struct Connection {
  int client = -1;
  int server = -1;
};

class Listener {
 public:
  Listener() {
    const char* address = std::getenv("RINGROAD_TEST_ADDRESS");
    at_.sin_family = AF_INET;
    at_.sin_addr.s_addr = address != nullptr ? inet_addr(address) : htonl(INADDR_LOOPBACK);
    if (bind(fd_, reinterpret_cast<sockaddr*>(&at_), sizeof at_) != 0 || listen(fd_, 8) != 0 ||
        getsockname(fd_, reinterpret_cast<sockaddr*>(&at_), &length_) != 0) {
      fail("listen");
    }
  }

  // Returns when it is known what becomes of the connection, if the policy waits for that.
  Connection connect_to(Warden& warden) {
    Connection made;
    std::thread other([&] {
      warden.let_alone();
      made.server = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    });
    made.client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(made.client, reinterpret_cast<sockaddr*>(&at_), sizeof at_) != 0) fail("connect");
    other.join();
    if (made.server < 0) fail("accept4");
    return made;
  }

 private:
  int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at_{};
  socklen_t length_ = sizeof at_;
};

void carry(int from, int to, unsigned seed) {
  std::array<unsigned char, 3000> sent;
  std::array<unsigned char, 3000> got;
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<unsigned char>(i * 7 + seed);
  if (send(from, sent.data(), sent.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(sent.size())) {
    fail("send");
  }
  if (recv(to, got.data(), got.size(), MSG_WAITALL) != static_cast<ssize_t>(got.size())) {
    fail("recv");
  }
  if (sent != got) {
    errno = EILSEQ;
    fail("other bytes came");
  }
}

void talk(const Connection& over) {
  for (unsigned turn = 0; turn < 16; ++turn) {
    carry(over.client, over.server, turn);
    carry(over.server, over.client, turn + 100);
  }
}

// A thread that has slept on a stream keeps a descriptor.
void sleep_on(int fd) {
  pollfd nothing{fd, POLLIN, 0};
  if (poll(&nothing, 1, 1) != 0) fail("poll");
}

void end(const Connection& over) {
  unsigned char byte;
  if (close(over.client) != 0) fail("close");
  if (recv(over.server, &byte, 1, 0) != 0) fail("no clean end");
  if (close(over.server) != 0) fail("close");
}

struct Holdings {
  unsigned descriptors = 0;
  unsigned mappings = 0;  // shared memory and devices
};

Holdings holdings() {
  Holdings found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    if (entry.is_symlink()) ++found.descriptors;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") != line.npos || line.find("infiniband") != line.npos) ++found.mappings;
  }
  return found;
}

unsigned on_channels() {
  unsigned count = 0;
  for (const auto& process : ringroad::cli::read_segments(ringroad::cli::segment_directory()).processes) {
    for (const auto& stream : process.streams) {
      if (process.pid == getpid() && stream.state == ringroad::State::kOnChannel) ++count;
    }
  }
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: faulty_program fail|lose|late STEP DESCRIPTORS MAPPINGS\n");
    return 2;
  }
  Warden warden(argv[1], static_cast<unsigned>(std::atoi(argv[2])));
  Holdings usual;
  usual.descriptors = static_cast<unsigned>(std::atoi(argv[3]));
  usual.mappings = static_cast<unsigned>(std::atoi(argv[4]));
  warden.begin();
  Listener first;
  Listener second;
  const Connection disturbed = first.connect_to(warden);
  warden.stop_counting();
  std::printf("promoted %u\n", on_channels());
  talk(disturbed);
  end(disturbed);
  unsigned promoted = 0;
  for (const auto until = Clock::now() + kPatience; promoted < 2 && Clock::now() < until;) {
    const Connection undisturbed = second.connect_to(warden);
    talk(undisturbed);
    promoted = on_channels();
    sleep_on(undisturbed.server);
    end(undisturbed);
  }
  std::printf("then promoted %u\n", promoted);
  // Channels are freed by the library's own thread.
  Holdings left = holdings();
  for (const auto until = Clock::now() + kPatience;
       (left.descriptors > usual.descriptors || left.mappings > usual.mappings) &&
       Clock::now() < until;
       left = holdings()) {
    std::this_thread::yield();
  }
  if (left.descriptors > usual.descriptors) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;  // the one that is read here
      const auto behind = std::filesystem::read_symlink(entry.path(), gone);
      std::printf("%s is %s\n", entry.path().filename().c_str(), behind.c_str());
    }
  }
  std::printf("left %u %u\n", left.descriptors, left.mappings);
  std::fflush(stdout);
  std::_Exit(0);  // the warden's thread would be waited for
}
