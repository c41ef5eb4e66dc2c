#include "cli/doctor/answerer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "cli/doctor/context.h"
#include "cli/doctor/probe_policy.h"
#include "cli/doctor/probe_socket.h"
#include "policy/policy.h"
#include "policy/rule.h"

namespace ringroad::cli::doctor {
namespace {

enum ExitStatus { kDone = 0, kFailed = 1, kWrongArguments = 2 };

constexpr int kMostAtOnce = 16;
constexpr int kPauseMs = 200;
// What a peer's probe takes at most, and then some.
constexpr std::chrono::seconds kConversation{60};
constexpr std::chrono::seconds kPatience{30};

volatile sig_atomic_t interrupted = 0;

void interrupt(int) { interrupted = 1; }

int complain(ExitStatus status, const std::string& text) {
  std::fprintf(stderr, "ringroad doctor: %s\n", text.c_str());
  return status;
}

struct Where {
  std::optional<Address> address;  // none: every one
  std::uint16_t port = kAnswerPort;
};

std::optional<Where> parse_where(const std::string& text) {
  Where where;
  if (text.empty()) return where;
  if (const auto endpoint = Endpoint::parse(text)) {
    return Where{endpoint->addr, endpoint->port};
  }
  const auto port = to_number(text);
  if (!port || *port == 0 || *port > 65535) return std::nullopt;
  where.port = static_cast<std::uint16_t>(*port);
  return where;
}

std::string to_text(const Where& where) {
  return where.address ? Endpoint(*where.address, where.port).to_string()
                       : std::to_string(where.port);
}

socklen_t fill(const Where& where, sockaddr_storage& name) {
  return Endpoint(where.address.value_or(Address()), where.port).to_sockaddr(name);
}

int listen_at(Where where, std::string& why) {
  sockaddr_storage name{};
  socklen_t length = fill(where, name);
  int fd = socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0 && !where.address) {
    // A host without IPv6.
    where.address = Address::parse("0.0.0.0");
    length = fill(where, name);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  }
  const int on = 1;
  const int off = 0;
  if (fd >= 0) {
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (name.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&name), length) != 0 || listen(fd, 16) != 0) {
    why = to_text(where) + ": " + strerrordesc_np(errno);
    if (fd >= 0) close(fd);
    return -1;
  }
  return fd;
}

// `waiting` is the signal mask while nobody asks: elsewhere SIGINT and SIGTERM are blocked, so that
// none comes between the question whether one has come and the wait, or to another thread.
int run_server(int listener, const std::shared_ptr<const policy::Policy>& policy,
               const sigset_t& waiting) {
  // Outlives the threads: they are left behind at the end.
  static std::atomic<int> busy{0};
  int told = 0;  // the last error that was not to last
  while (interrupted == 0) {
    sockaddr_storage name{};
    socklen_t length = sizeof name;
    pollfd asked{listener, POLLIN, 0};
    if (ppoll(&asked, 1, nullptr, &waiting) < 0 && errno == EINTR) continue;
    const int fd = accept4(listener, reinterpret_cast<sockaddr*>(&name), &length, SOCK_CLOEXEC);
    if (fd < 0) {
      const int error = errno;
      const AcceptError meaning = meaning_of(error);
      if (meaning == AcceptError::kEnd) {
        return complain(kFailed, std::string("accept: ") + strerrordesc_np(error));
      }
      if (meaning == AcceptError::kPause) {
        if (error != told) {
          complain(kFailed, std::string("accept: ") + strerrordesc_np(error) + "; trying again");
        }
        told = error;
        // Until descriptors or memory come back, or a signal ends it.
        const timespec pause{0, kPauseMs * 1'000'000};
        ppoll(nullptr, 0, &pause, &waiting);
      }
      continue;
    }
    told = 0;
    Endpoint remote;
    const bool named = Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&name), length, remote);
    const bool known = named && is_answered(*policy, remote.addr);
    const bool full = busy >= kMostAtOnce;
    std::printf("%s %s\n", named ? remote.to_string().c_str() : "somebody",
                !known ? "has no RDMA rule in the policy: refused"
                : full ? "is refused: as many as can be are answered already"
                       : "is answered");
    std::fflush(stdout);
    if (!known || full) {
      close(fd);
      continue;
    }
    ++busy;
    try {
      std::thread([fd] {
        converse(fd, kConversation);
        close(fd);
        --busy;
      }).detach();
    } catch (const std::system_error& error) {
      std::fprintf(stderr, "ringroad doctor: no thread: %s\n", error.what());
      close(fd);
      --busy;
    }
  }
  return kDone;
}

}  // namespace

bool is_answered(const policy::Policy& policy, const Address& peer) {
  for (std::size_t i = 0; i < policy.rule_count(); ++i) {
    const policy::Rule& rule = policy.conditions(i);
    if (rule.subnet_matches(peer)) return is_for_rdma(rule);
  }
  return false;
}

AcceptError meaning_of(int error) noexcept {
  switch (error) {
    case EBADF:
    case EINVAL:
    case ENOTSOCK:
    case EOPNOTSUPP:
    case EFAULT:
      return AcceptError::kEnd;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return AcceptError::kPause;
    default:
      return AcceptError::kRetry;
  }
}

void converse(int fd, std::chrono::milliseconds time) {
  const ProbeClock::time_point until = ProbeClock::now() + time;
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  set_socket_time(fd, SO_RCVTIMEO, kPatience);
  set_socket_time(fd, SO_SNDTIMEO, kPatience);
  if (!send_all(fd, kGreeting, sizeof kGreeting - 1, until)) return;
  std::vector<char> message(kLongestMessage);
  while (receive_all(fd, message.data(), kLengthBytes, until)) {
    std::uint32_t length = 0;
    std::memcpy(&length, message.data(), sizeof length);
    length = ntohl(length);
    if (length < kLengthBytes || length > kLongestMessage) return;
    if (!receive_all(fd, message.data() + kLengthBytes, length - kLengthBytes, until)) return;
    if (!send_all(fd, message.data(), length, until)) return;
  }
}

int answer(const std::string& where_text, const policy::LoadResult& loaded,
           const std::string& library) {
  const std::optional<Where> where = parse_where(where_text);
  if (!where) {
    return complain(kWrongArguments,
                    "--answer: \"" + where_text + "\" is no port and no ADDRESS:PORT");
  }
  for (const policy::Error& error : loaded.errors) {
    std::fprintf(stderr, "%s\n", to_string(error).c_str());
  }
  std::vector<const policy::Rule*> rules;
  if (loaded) rules = probe_rules(*loaded.policy);
  const auto for_rdma = [](const policy::Rule* rule) { return is_for_rdma(*rule); };
  if (std::none_of(rules.begin(), rules.end(), for_rdma)) {
    return complain(kFailed,
                    "the policy has no RDMA rule, so there is nobody to answer; see --policy");
  }
  const ProbeEnvironment environment(library, probe_policy_text(rules, where->port));
  if (environment.variables().empty()) return complain(kFailed, environment.why());
  for (const std::string& variable : environment.variables()) {
    const std::size_t equals = variable.find('=');
    setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  const std::string spec = to_text(*where);
  execl("/proc/self/exe", "ringroad", "doctor", "--serve-answers", spec.c_str(), nullptr);
  return complain(kFailed, std::string("exec: ") + strerrordesc_np(errno));
}

int serve_answers(const std::string& where_text) {
  const std::optional<Where> where = parse_where(where_text);
  const policy::LoadResult loaded = policy::Policy::load_default(std::getenv("RINGROAD_POLICY"));
  if (!where || !loaded) return complain(kFailed, "--serve-answers is what --answer starts");
  struct sigaction action {};
  action.sa_handler = interrupt;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  sigset_t waiting;
  pthread_sigmask(SIG_BLOCK, &ends, &waiting);
  sigdelset(&waiting, SIGINT);
  sigdelset(&waiting, SIGTERM);
  std::string why;
  const int listener = listen_at(*where, why);
  if (listener < 0) return complain(kFailed, why);
  std::printf("answering at %s%s; on the other host: ringroad doctor --peer HOST:%u\n",
              where->address ? "" : "every address, port ", to_text(*where).c_str(),
              static_cast<unsigned>(where->port));
  std::fflush(stdout);
  const int status = run_server(listener, loaded.policy, waiting);
  close(listener);
  return status;
}

}  // namespace ringroad::cli::doctor
