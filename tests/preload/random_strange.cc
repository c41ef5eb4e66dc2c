#include "tests/preload/random_strange.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <csignal>
#include <limits>
#include <set>

namespace ringroad::test {
namespace {

// The compiler is not to know them.
template <typename T>
T told(T value) {
  const volatile T hidden = value;
  return hidden;
}

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
constexpr int kTickUs = 1000;
constexpr int kRainUs = 300;
constexpr unsigned kChildAlarmS = 20;  // one that hangs is to be told from one that ends
constexpr std::size_t kWaitBytes = 64;
constexpr int kLooksForEdges = 8;  // which may come a moment later where streams switch often

const char kBytes[kWaitBytes] = {};
char received[65'536];
char waited[kWaitBytes];

// ---- Signals

volatile sig_atomic_t ticks = 0;
volatile sig_atomic_t ticks_to_jump = 0;
thread_local sigjmp_buf outside_of_call;
const std::function<long()>* errand_of_handler = nullptr;
long answer_of_handler = 0;

void count_tick(int) { ticks = ticks + 1; }

void jump_at_a_tick(int) {
  ticks = ticks + 1;
  if (ticks == ticks_to_jump) siglongjmp(outside_of_call, 1);
}

void run_errand_in_handler(int) { answer_of_handler = (*errand_of_handler)(); }

void handle(int signo, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  ::sigaction(signo, &action, nullptr);
}

void tick_every(int microseconds) {
  const itimerval timer{{0, microseconds}, {0, microseconds}};
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

// ---- Threads

enum class Ending { kReturns, kExits, kExitsByNumber };

struct Errand {
  std::function<long()> call;
  Ending ending = Ending::kReturns;
  std::atomic<pid_t> tid{0};
  long value = -1;
  pthread_t thread{};
};

void* run_errand(void* data) {
  auto* errand = static_cast<Errand*>(data);
  errand->tid.store(::gettid());
  errand->value = errand->call();
  if (errand->ending == Ending::kExits) ::pthread_exit(nullptr);
  if (errand->ending == Ending::kExitsByNumber) ::syscall(SYS_exit, 0);
  return nullptr;
}

void start(Errand& errand, bool smallest_stack) {
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  if (smallest_stack) {
    ::pthread_attr_setstacksize(&attributes, static_cast<std::size_t>(::sysconf(_SC_THREAD_STACK_MIN)));
  }
  if (::pthread_create(&errand.thread, &attributes, run_errand, &errand) != 0) ::_exit(4);
  ::pthread_attr_destroy(&attributes);
}

// ---- Limits

struct Limit {
  const char* name;
  __rlimit_resource resource;
  rlim_t to;
};

constexpr rlim_t kInUse = RLIM_INFINITY;  // and as little more as a call of ours itself may take
constexpr rlim_t kLittle = 1 << 20;
constexpr Limit kLimits[] = {
    {"AS", RLIMIT_AS, kInUse},         {"DATA", RLIMIT_DATA, kInUse},     {"STACK", RLIMIT_STACK, 64 * 1024},
    {"MEMLOCK", RLIMIT_MEMLOCK, 0},    {"NPROC", RLIMIT_NPROC, 0},        {"FSIZE", RLIMIT_FSIZE, 0},
    {"SIGPENDING", RLIMIT_SIGPENDING, 0}, {"NOFILE of 0", RLIMIT_NOFILE, 0}, {"NOFILE of 1", RLIMIT_NOFILE, 1},
    {"NOFILE of 5", RLIMIT_NOFILE, 5}, {"NOFILE of 12", RLIMIT_NOFILE, 12}, {"NOFILE of 64", RLIMIT_NOFILE, 64},
};

rlim_t in_use(const char* what) {
  long kib = 0;
  if (std::FILE* file = std::fopen("/proc/self/status", "re")) {
    char line[128];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      if (std::strncmp(line, what, std::strlen(what)) == 0) std::sscanf(line, "%*s %ld", &kib);
    }
    std::fclose(file);
  }
  return static_cast<rlim_t>(kib) * 1024;
}

// The soft one, which can be raised again.
class Lowered {
 public:
  explicit Lowered(const Limit& limit) : resource_(limit.resource) {
    const rlim_t to = limit.to == kInUse ? in_use(resource_ == RLIMIT_AS ? "VmSize:" : "VmData:") + kLittle
                                         : limit.to;
    ::getrlimit(resource_, &before_);
    const rlimit now{to, before_.rlim_max};
    ::setrlimit(resource_, &now);
  }
  ~Lowered() { ::setrlimit(resource_, &before_); }
  Lowered(const Lowered&) = delete;
  Lowered& operator=(const Lowered&) = delete;

 private:
  __rlimit_resource resource_;
  rlimit before_{};
};

// ---- Calls that no program means

struct Call {
  const char* name;
  long (*make)(int fd);
};

template <typename T>
T* null() {
  return told(static_cast<T*>(nullptr));
}

constexpr std::size_t kTooMany = IOV_MAX + 1;

long send_message(int fd, iovec* vectors, std::size_t count) {
  msghdr message{};
  message.msg_iov = vectors;
  message.msg_iovlen = count;
  return ::sendmsg(fd, &message, MSG_NOSIGNAL);
}

long receive_message(int fd, iovec* vectors, std::size_t count) {
  msghdr message{};
  message.msg_iov = vectors;
  message.msg_iovlen = count;
  return ::recvmsg(fd, &message, MSG_DONTWAIT);
}

// None of them sends anything.
constexpr Call kBadSends[] = {
    {"write of -1", [](int fd) { return ::write(fd, kBytes, told(kNever)); }},
    {"write of 2^63", [](int fd) { return ::write(fd, kBytes, told(std::size_t{1} << 63)); }},
    {"write of null", [](int fd) { return ::write(fd, null<char>(), told(std::size_t{5})); }},
    {"send of null", [](int fd) { return ::send(fd, null<char>(), told(std::size_t{5}), MSG_NOSIGNAL); }},
    {"send of nothing at null", [](int fd) { return ::send(fd, null<char>(), 0, MSG_NOSIGNAL); }},
    {"writev of -1",
     [](int fd) {
       iovec one{received, told(kNever)};
       return ::writev(fd, &one, 1);
     }},
    {"writev of 8 and -1",
     [](int fd) {
       iovec two[2] = {{received, 8}, {received, told(kNever)}};
       return ::writev(fd, two, 2);
     }},
    {"writev of -1 vectors",
     [](int fd) {
       iovec one{received, 8};
       return ::writev(fd, &one, told(-1));
     }},
    {"writev from null", [](int fd) { return ::writev(fd, null<iovec>(), told(1)); }},
    {"writev of too many",
     [](int fd) {
       static iovec many[kTooMany] = {};
       return ::writev(fd, many, told(static_cast<int>(kTooMany)));
     }},
    {"sendmsg of -1",
     [](int fd) {
       iovec one{received, told(kNever)};
       return send_message(fd, &one, 1);
     }},
    {"sendmsg of too many",
     [](int fd) {
       iovec one{received, 1};
       return send_message(fd, &one, told(kTooMany));
     }},
    {"sendmsg of null",
     [](int fd) {
       iovec one{null<char>(), 5};
       return send_message(fd, &one, 1);
     }},
    {"sendmsg from null", [](int fd) { return static_cast<long>(::sendmsg(fd, null<msghdr>(), MSG_NOSIGNAL)); }},
    {"pwritev2 of -1 vectors",
     [](int fd) {
       iovec one{received, 1};
       return ::pwritev2(fd, &one, told(-1), -1, 0);
     }},
    {"pwrite", [](int fd) { return ::pwrite(fd, kBytes, 1, 0); }},
    {"sendfile from -1", [](int fd) { return ::sendfile(fd, -1, nullptr, 10); }},
};

// None of them waits; what one takes is told by its answer.
constexpr Call kBadReceives[] = {
    {"recv of -1", [](int fd) { return ::recv(fd, received, told(kNever), MSG_DONTWAIT); }},
    {"recv to null", [](int fd) { return ::recv(fd, null<char>(), told(std::size_t{5}), MSG_DONTWAIT); }},
    {"recv of nothing to null", [](int fd) { return ::recv(fd, null<char>(), 0, MSG_DONTWAIT); }},
    {"recvmsg of -1",
     [](int fd) {
       iovec one{received, told(kNever)};
       return receive_message(fd, &one, 1);
     }},
    {"recvmsg of 8 and -1",
     [](int fd) {
       iovec two[2] = {{received, 8}, {received, told(kNever)}};
       return receive_message(fd, two, 2);
     }},
    {"recvmsg of too many",
     [](int fd) {
       iovec one{received, 1};
       return receive_message(fd, &one, told(kTooMany));
     }},
    {"recvmsg to null",
     [](int fd) {
       iovec one{null<char>(), 5};
       return receive_message(fd, &one, 1);
     }},
    {"recvmsg from null", [](int fd) { return static_cast<long>(::recvmsg(fd, null<msghdr>(), MSG_DONTWAIT)); }},
    {"readv of -1",
     [](int fd) {
       iovec one{received, told(kNever)};
       return ::readv(fd, &one, 1);
     }},
    {"readv of -1 vectors",
     [](int fd) {
       iovec one{received, 8};
       return ::readv(fd, &one, told(-1));
     }},
    {"readv from null", [](int fd) { return ::readv(fd, null<iovec>(), told(1)); }},
    {"pread", [](int fd) { return ::pread(fd, received, 1, 0); }},
    {"preadv2 of -1 vectors",
     [](int fd) {
       iovec one{received, 1};
       return ::preadv2(fd, &one, told(-1), -1, 0);
     }},
};

// What the kernel has to answer for: the stream goes back to it, and that is the end of its channel.
constexpr Call kTakenBack[] = {
    {"recv of urgent bytes", [](int fd) { return ::recv(fd, received, 1, MSG_OOB | MSG_DONTWAIT); }},
    {"recv of errors", [](int fd) { return ::recv(fd, received, 1, MSG_ERRQUEUE | MSG_DONTWAIT); }},
    {"SIOCATMARK",
     [](int fd) {
       int value = 0;
       return static_cast<long>(::ioctl(fd, SIOCATMARK, &value));
     }},
};

long wait_with(int epoll, int most, epoll_event* events) { return ::epoll_wait(epoll, events, most, 0); }

long control_with(int fd, int op, epoll_event* event) {
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  const long result = ::epoll_ctl(epoll, op, fd, event);
  const int saved = errno;
  ::close(epoll);
  errno = saved;
  return result;
}

constexpr Call kMisuses[] = {
    {"poll of null", [](int) { return static_cast<long>(::poll(null<pollfd>(), told(nfds_t{1}), 0)); }},
    {"poll of too many", [](int) { return static_cast<long>(::poll(null<pollfd>(), told(nfds_t{1} << 31), 0)); }},
    {"poll of more than the limit",
     [](int fd) {
       rlimit limit{};
       ::getrlimit(RLIMIT_NOFILE, &limit);
       std::vector<pollfd> all(limit.rlim_cur + 1, pollfd{-1, 0, 0});
       all[1] = {fd, 0, 0};
       return static_cast<long>(::poll(all.data(), all.size(), 0));
     }},
    {"poll of as many as the limit",
     [](int fd) {
       rlimit limit{};
       ::getrlimit(RLIMIT_NOFILE, &limit);
       std::vector<pollfd> all(limit.rlim_cur, pollfd{-1, 0, 0});
       all[1] = {fd, POLLOUT, 0};
       all.back() = {fd, POLLIN, 0};
       return static_cast<long>(::poll(all.data(), all.size(), 0));
     }},
    {"ppoll with a wrong time",
     [](int fd) {
       pollfd one{fd, POLLIN, 0};
       const timespec wrong{0, 2'000'000'000};
       return static_cast<long>(::ppoll(&one, 1, &wrong, nullptr));
     }},
    {"select of -1",
     [](int) {
       timeval none{0, 0};
       return static_cast<long>(::select(told(-1), nullptr, nullptr, nullptr, &none));
     }},
    {"select with a wrong time",
     [](int fd) {
       fd_set set;
       FD_ZERO(&set);
       FD_SET(fd, &set);
       timeval wrong{-1, 0};
       return static_cast<long>(::select(fd + 1, &set, nullptr, nullptr, &wrong));
     }},
    {"epoll_wait on a stream",
     [](int fd) {
       epoll_event event;
       return wait_with(fd, 1, &event);
     }},
    {"epoll_ctl without an event", [](int fd) { return control_with(fd, EPOLL_CTL_ADD, null<epoll_event>()); }},
    {"epoll_ctl of another kind",
     [](int fd) {
       epoll_event event{EPOLLIN, {}};
       return control_with(fd, told(77), &event);
     }},
    {"epoll_ctl of what is not in it",
     [](int fd) {
       epoll_event event{EPOLLIN, {}};
       return control_with(fd, EPOLL_CTL_MOD, &event);
     }},
    {"epoll_ctl of exclusive one-shot",
     [](int fd) {
       epoll_event event{EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, {}};
       return control_with(fd, EPOLL_CTL_ADD, &event);
     }},
    {"shutdown in another way", [](int fd) { return static_cast<long>(::shutdown(fd, told(7))); }},
    {"accept", [](int fd) { return static_cast<long>(::accept(fd, nullptr, nullptr)); }},
    {"dup2 to itself", [](int fd) { return static_cast<long>(::dup2(fd, fd) == fd); }},
    {"dup3 to itself", [](int fd) { return static_cast<long>(::dup3(fd, fd, 0)); }},
    {"dup2 to -1", [](int fd) { return static_cast<long>(::dup2(fd, told(-1))); }},
    {"dup2 from -1", [](int fd) { return static_cast<long>(::dup2(told(-1), fd)); }},
    {"F_DUPFD from -1", [](int fd) { return static_cast<long>(::fcntl(fd, F_DUPFD, told(-1))); }},
    {"F_DUPFD from 2^30", [](int fd) { return static_cast<long>(::fcntl(fd, F_DUPFD, 1 << 30)); }},
    {"another fcntl", [](int fd) { return static_cast<long>(::fcntl(fd, told(7777), 0)); }},
    {"FIONREAD to null", [](int fd) { return static_cast<long>(::ioctl(fd, FIONREAD, null<int>())); }},
    {"another ioctl", [](int fd) { return static_cast<long>(::ioctl(fd, told(0x12345678UL), 0)); }},
    {"SO_TYPE to null",
     [](int fd) {
       return static_cast<long>(::getsockopt(fd, SOL_SOCKET, SO_TYPE, null<int>(), null<socklen_t>()));
     }},
    {"TCP_NODELAY of one byte",
     [](int fd) {
       char on = 1;
       return static_cast<long>(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, 1));
     }},
    {"lseek", [](int fd) { return ::lseek(fd, 0, SEEK_CUR); }},
    {"fsync", [](int fd) { return static_cast<long>(::fsync(fd)); }},
    {"recv from -1", [](int) { return ::recv(told(-1), received, 1, 0); }},
    {"close of -1", [](int) { return static_cast<long>(::close(told(-1))); }},
    {"close of 2^30", [](int) { return static_cast<long>(::close(told(1 << 30))); }},
    {"close_range the wrong way", [](int) { return static_cast<long>(::close_range(900, 800, 0)); }},
};

// ---- Calls that sleep while nothing comes

struct Wait {
  const char* name;
  bool restarts;   // after a handler with SA_RESTART
  bool takes;      // the bytes that come
  long (*make)(int fd, int epoll);
};

constexpr std::size_t kAll = 4;  // what one that waits for all of it asks for
constexpr std::size_t kManyEntries = 40;

constexpr Wait kWaits[] = {
    {"recv", true, true, [](int fd, int) { return ::recv(fd, waited, kWaitBytes, 0); }},
    {"read", true, true, [](int fd, int) { return ::read(fd, waited, kWaitBytes); }},
    {"readv", true, true,
     [](int fd, int) {
       iovec two[2] = {{waited, 3}, {waited + 3, kWaitBytes - 3}};
       return ::readv(fd, two, 2);
     }},
    {"recvmsg", true, true,
     [](int fd, int) {
       iovec one{waited, kWaitBytes};
       msghdr message{};
       message.msg_iov = &one;
       message.msg_iovlen = 1;
       return ::recvmsg(fd, &message, 0);
     }},
    {"recv of all", true, true, [](int fd, int) { return ::recv(fd, waited, kAll, MSG_WAITALL); }},
    {"peek", true, false, [](int fd, int) { return ::recv(fd, waited, kWaitBytes, MSG_PEEK); }},
    {"poll", false, false,
     [](int fd, int) {
       pollfd one{fd, POLLIN, 0};
       return static_cast<long>(::poll(&one, 1, -1));
     }},
    {"poll of many", false, false,
     [](int fd, int) {
       pollfd many[kManyEntries];
       for (pollfd& entry : many) entry = {-1, 0, 0};
       many[kManyEntries / 2] = {fd, POLLIN, 0};
       return static_cast<long>(::poll(many, kManyEntries, -1));
     }},
    {"ppoll", false, false,
     [](int fd, int) {
       pollfd one{fd, POLLIN, 0};
       const timespec long_time{1000, 0};
       return static_cast<long>(::ppoll(&one, 1, &long_time, nullptr));
     }},
    {"select", false, false,
     [](int fd, int) {
       fd_set set;
       FD_ZERO(&set);
       FD_SET(fd, &set);
       return static_cast<long>(::select(fd + 1, &set, nullptr, nullptr, nullptr));
     }},
    {"pselect", false, false,
     [](int fd, int) {
       fd_set set;
       FD_ZERO(&set);
       FD_SET(fd, &set);
       return static_cast<long>(::pselect(fd + 1, &set, nullptr, nullptr, nullptr, nullptr));
     }},
    {"epoll_wait", false, false,
     [](int, int epoll) {
       epoll_event event;
       return static_cast<long>(::epoll_wait(epoll, &event, 1, -1));
     }},
};

// An epoll instance that has one number.
class Watched {
 public:
  explicit Watched(int fd) : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    epoll_event event{EPOLLIN, {}};
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  }
  ~Watched() { ::close(epoll_); }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  int epoll() const { return epoll_; }

 private:
  const int epoll_;
};

// ---- Where an ordinary operation is done

enum class Place {
  kHere, kThread, kThreadThatExits, kThreadThatExitsByNumber, kSmallestStack, kHandler, kOtherStack, kChild, kRain,
  kLimit, kNumbersClosed, kNumbersTaken,
};

class StrangePlayer : public Player {
 public:
  StrangePlayer(int side, std::uint64_t seed, int to_peer, int from_peer, const std::vector<long>& only)
      : Player(side, true, seed, to_peer, from_peer), seed_(seed), only_(only.begin(), only.end()) {
    looks_for_edges_ = kLooksForEdges;
    // Left out, see docs/compatibility.md: what is told of a number that is closed here and open in a child, and by a
    // receive that asks the kernel twice.
    takes_out_ = true;
    fills_past_a_reset_ = false;
  }

  void play(long count) override {
    Player::play(count);
    for (turn_ = 0; turn_ < 2; ++turn_) release();
  }

 private:
  void step() override {
    if (!only_.empty() && only_.count(number_) == 0) return;
    draw_ = Draw(seed_ * 1'000'003 + static_cast<std::uint64_t>(number_));
    elsewhere_ = Place::kHere;
    const int kind = draw_.below(100);
    const int detail = draw_.below(1000);
    if (kind < 55) elsewhere_ = drawn_place(detail);
    if (kind < 70) {
      ordinary();
    } else if (choose()) {
      strange(kind - 70);
    }
    elsewhere_ = Place::kHere;
    where_.clear();
  }

  static Place drawn_place(int detail) {
    constexpr struct {
      int below;
      Place place;
    } kPlaces[] = {{120, Place::kThread},          {200, Place::kThreadThatExits},
                   {330, Place::kThreadThatExitsByNumber}, {420, Place::kSmallestStack},
                   {500, Place::kHandler},         {580, Place::kOtherStack},
                   {640, Place::kChild},           {780, Place::kRain},
                   {920, Place::kLimit},           {960, Place::kNumbersClosed},
                   {1000, Place::kNumbersTaken}};
    for (const auto& entry : kPlaces) {
      if (detail < entry.below) return entry.place;
    }
    return Place::kHere;
  }

  void ordinary() {
    // Drawn before the operation, which draws as much as it needs.
    limit_ = &kLimits[draw_.below(static_cast<int>(std::size(kLimits)))];
    number_to_take_ = 30 + draw_.below(34);
    take_all_ = draw_.one_in(8);
    if (!choose()) return;
    operate();
    // A child must find unread bytes in the socket: docs/compatibility.md.
    if (elsewhere_ == Place::kChild) unsettle();
  }

  void unsettle() {
    for (Connection& c : connections_) {
      for (End& end : c.ends) end.dirty = true;
    }
  }

  // ---- perform

  long perform(const std::function<long()>& call) override {
    switch (elsewhere_) {
      case Place::kHere: return call();
      case Place::kThread: return in_a_thread(call, Ending::kReturns, false, "in a thread: ");
      case Place::kThreadThatExits: return in_a_thread(call, Ending::kExits, false, "in a thread that exits: ");
      case Place::kThreadThatExitsByNumber:
        return in_a_thread(call, Ending::kExitsByNumber, false, "in a thread that exits by number: ");
      case Place::kSmallestStack: return in_a_thread(call, Ending::kReturns, true, "on the smallest stack: ");
      case Place::kHandler: return in_a_handler(call, false);
      case Place::kOtherStack: return in_a_handler(call, true);
      case Place::kChild: return in_a_child(call);
      case Place::kRain: return in_the_rain(call);
      case Place::kLimit: return under_a_limit(call);
      case Place::kNumbersClosed: return behind_closed_numbers(call);
      case Place::kNumbersTaken: return behind_taken_numbers(call);
    }
    return -1;
  }

  long in_a_thread(const std::function<long()>& call, Ending ending, bool smallest_stack, const char* where) {
    where_ = where;
    Errand errand;
    errand.call = call;
    errand.ending = ending;
    start(errand, smallest_stack);
    ::pthread_join(errand.thread, nullptr);
    return errand.value;
  }

  long in_a_handler(const std::function<long()>& call, bool other_stack) {
    where_ = other_stack ? "in a handler on another stack: " : "in a handler: ";
    stack_t before{};
    if (other_stack) {
      static char memory[128 * 1024];
      stack_t stack{};
      stack.ss_sp = memory;
      stack.ss_size = sizeof memory;
      ::sigaltstack(&stack, &before);
    }
    handle(SIGUSR1, run_errand_in_handler, other_stack ? SA_ONSTACK : 0);
    errand_of_handler = &call;
    ::raise(SIGUSR1);
    if (other_stack) ::sigaltstack(&before, nullptr);
    return answer_of_handler;
  }

  long in_a_child(const std::function<long()>& call) {
    // What the operation changes in this process is not the child's to change.
    if (numbers_change_ || !may_leave_channels()) return call();
    where_ = "in a child: ";
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) lost();
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(kChildAlarmS);
      settle_own();
      const long value = call();
      ::_exit(::write(ends[1], &value, sizeof value) == sizeof value ? 0 : 1);
    }
    ::close(ends[1]);
    long value = -1;
    if (::read(ends[0], &value, sizeof value) < 0) lost();
    ::close(ends[0]);
    end_of(child);
    return value;
  }

  // Left out: what is told of a stream that returns to TCP when its peer has closed, see docs/compatibility.md.
  bool may_leave_channels() const {
    return std::none_of(std::begin(connections_), std::end(connections_), [&](const Connection& c) {
      return c.ends[turn_].open() && !c.ends[1 - turn_].alive();
    });
  }

  void settle_own() {
    for (Connection& c : connections_) {
      c.ends[side_].dirty = true;
      settle(static_cast<int>(&c - connections_), c.ends[side_]);
    }
  }

  void end_of(pid_t child) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) say("the child ended with signal " + std::to_string(WTERMSIG(status)));
  }

  long in_the_rain(const std::function<long()>& call) {
    where_ = "in the rain: ";
    handle(SIGALRM, count_tick, SA_RESTART);
    tick_every(kRainUs);
    const long value = call();
    tick_every(0);
    return value;
  }

  long under_a_limit(const std::function<long()>& call) {
    const bool connects = !connections_[place_].ends[side_].open();
    // Left out: poll(2) of more entries than the limit, see docs/compatibility.md.
    const bool too_many = polls_ && limit_->resource == RLIMIT_NOFILE && limit_->to < kConnections;
    if (connects || too_many) return call();
    where_ = std::string("with ") + limit_->name + ": ";
    const Lowered lowered(*limit_);
    return call();
  }

  // All that /proc/self/fd shows and that is not the program's. The library's own may say EBADF the second
  // time, and to dup2(2): docs/compatibility.md.
  long behind_closed_numbers(const std::function<long()>& call) {
    where_ = "with other numbers closed: ";
    const std::set<int> own = own_numbers();
    for (const int fd : all_numbers()) {
      if (own.count(fd) == 0 && ::close(fd) != 0 && errno != EBADF) say("close of another number: " + answer(-1));
    }
    ::close_range(static_cast<unsigned>(*own.rbegin()) + 1, UINT_MAX, 0);
    ::closefrom(*own.rbegin() + 1);
    return call();
  }

  // A file on a number that is free, or, seldom, on all that are another's: the library does without its own then.
  long behind_taken_numbers(const std::function<long()>& call) {
    const bool take_all = take_all_ && may_leave_channels();
    where_ = take_all ? "with other numbers taken: " : "with another number taken: ";
    const std::vector<int> all = all_numbers();
    if (std::find(all.begin(), all.end(), number_to_take_) == all.end()) {
      // Nothing is said where it succeeds: both processes may be here, to connect and to accept.
      if (::dup2(file_, number_to_take_) != number_to_take_) say("dup2 to it = " + answer(-1));
      if (::close(number_to_take_) != 0) say("close of it = " + answer(-1));
    }
    const std::set<int> own = own_numbers();
    for (const int number : all) {
      if (take_all && own.count(number) == 0 && ::dup2(file_, number) == number) ::close(number);
    }
    return call();
  }

  static std::vector<int> all_numbers() {
    std::vector<int> numbers;
    DIR* directory = ::opendir("/proc/self/fd");
    if (directory == nullptr) return numbers;
    while (const dirent* entry = ::readdir(directory)) {
      if (entry->d_name[0] != '.') numbers.push_back(std::atoi(entry->d_name));
    }
    const int own = ::dirfd(directory);
    numbers.erase(std::remove(numbers.begin(), numbers.end(), own), numbers.end());
    ::closedir(directory);
    return numbers;
  }

  std::set<int> own_numbers() const {
    std::set<int> own = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, to_peer_, from_peer_, file_};
    own.insert(std::begin(epolls_), std::end(epolls_));
    if (listener_ >= 0) own.insert(listener_);
    if (keeper_ends_[1] >= 0) own.insert(keeper_ends_[1]);
    if (marker_ends_[0] >= 0) own.insert(std::begin(marker_ends_), std::end(marker_ends_));
    for (const Connection& c : connections_) {
      for (const Copy& copy : c.ends[side_].copies) own.insert(copy.fd);
    }
    return own;
  }

  // ---- Operations of their own

  void strange(int kind) {
    Connection& c = connections_[place_];
    End& end = c.ends[turn_];
    if (kind < 5) {
      bad_send(c);
    } else if (kind < 10) {
      bad_receive(end);
    } else if (kind < 15) {
      misuse(end);
    } else if (kind < 18) {
      interrupted(end);
    } else if (kind < 21) {
      jumped_out_of(end);
    } else if (kind < 25) {
      sleeper(c, end);
    } else if (kind < 27) {
      opened_mask(end);
    } else if (kind < 28) {
      helper();
    } else if (kind < 29) {
      keep_or_release();
    } else {
      flood(c);
    }
  }

  template <std::size_t N>
  long made(const Call (&table)[N]) {
    const Call& call = table[draw_.below(static_cast<int>(N))];
    return turn([&] {
      errno = 0;
      const long value = call.make(fd());
      say(std::string(call.name) + " = " + answer(value));
      return value;
    });
  }

  void bad_send(Connection& c) {
    const End& peer = c.ends[1 - turn_];
    if (peer.alive() && peer.shut_rd && peer.shut_wr) return;  // as in send()
    made(kBadSends);
  }

  void bad_receive(End& end) {
    if (!end.ready() && !end.nonblocking) return;
    if (draw_.one_in(40)) {
      if (may_leave_channels()) made(kTakenBack);
      end.dirty = true;
      return;
    }
    const long got = made(kBadReceives);
    if (got > 0) end.unread -= static_cast<std::size_t>(got);
  }

  void misuse(End& end) {
    if (!end.ready() && !end.shut_wr) made(kMisuses);  // else there is more that a socket can be made to do
  }

  // A call would sleep for ever.
  static bool would_sleep(const End& end) { return !end.ready() && !end.nonblocking; }

  const Wait& drawn_wait() { return kWaits[draw_.below(static_cast<int>(std::size(kWaits)))]; }

  void interrupted(End& end) {
    const Wait& wait = drawn_wait();
    if (!would_sleep(end)) return;
    turn([&] {
      const Watched watched(fd());
      handle(SIGALRM, count_tick, 0);
      tick_every(kTickUs);
      errno = 0;
      const long value = wait.make(fd(), watched.epoll());
      const int saved = errno;
      tick_every(0);
      errno = saved;
      say(std::string("interrupted ") + wait.name + " = " + answer(value));
      return 0L;
    });
  }

  void jumped_out_of(End& end) {
    const Wait& wait = drawn_wait();
    const int tick = wait.restarts ? 1 + draw_.below(3) : 1;
    const bool other_stack = draw_.one_in(3);
    if (!would_sleep(end)) return;
    turn([&] {
      const Watched watched(fd());
      static char memory[64 * 1024];
      stack_t stack{};
      stack.ss_sp = memory;
      stack.ss_size = sizeof memory;
      stack_t before{};
      if (other_stack) ::sigaltstack(&stack, &before);
      say(jump_out(wait, fd(), watched.epoll(), tick, other_stack));
      if (other_stack) ::sigaltstack(&before, nullptr);
      return 0L;
    });
  }

  static std::string jump_out(const Wait& wait, int at, int epoll, int tick, bool other_stack) {
    ticks = 0;
    ticks_to_jump = tick;
    handle(SIGALRM, jump_at_a_tick, SA_RESTART | (other_stack ? SA_ONSTACK : 0));
    long value = 0;
    if (sigsetjmp(outside_of_call, 1) == 0) {
      tick_every(kTickUs);
      value = wait.make(at, epoll);
      const int saved = errno;
      tick_every(0);
      errno = saved;
      return std::string("not jumped out of ") + wait.name + " = " + answer(value);
    }
    tick_every(0);
    return std::string("jumped out of ") + wait.name + " at " + std::to_string(tick);
  }

  // A thread sleeps in a call, and something happens: by the peer, by another thread, by a signal.
  void sleeper(Connection& c, End& end) {
    enum { kBytesCome, kPeerShuts, kPeerCloses, kOwnShutdown, kSignal, kJump, kOtherFile, kHappenings };
    const Wait& wait = drawn_wait();
    int happening = draw_.below(kHappenings);
    const auto n = static_cast<std::size_t>(draw_.below(30)) + kAll;
    const auto ending = static_cast<Ending>(draw_.below(3));
    const bool small = draw_.one_in(3);
    if (!would_sleep(end)) return;
    const int own = turn_;
    const int other = 1 - turn_;
    End& peer = c.ends[other];
    const bool peer_can = peer.open() && !peer.shut_wr && !peer.reset && !(end.shut_rd && end.shut_wr);
    if (happening <= kPeerCloses && !peer_can) happening = kSignal;
    if (happening == kPeerCloses && (peer.copies.size() > 1 || peer.held)) happening = kPeerShuts;
    Errand errand;
    std::unique_ptr<Watched> watched;
    std::string told_by;
    turn([&] {
      watched = std::make_unique<Watched>(fd());
      handle(SIGUSR2, happening == kJump ? jump_at_a_tick : count_tick, 0);
      const int at = fd();
      const int epoll = watched->epoll();
      errand.ending = ending;
      errand.call = [&, at, epoll] { return sleep_in(wait, at, epoll, told_by); };
      start(errand, small);
      if (!wait_until_asleep(errand.tid)) say("does not sleep");
      return 0L;
    });
    const int copy = copy_;
    if (happening <= kPeerCloses) {
      turn_ = other;
      copy_ = 0;
      const long done = turn([&] {
        if (happening == kBytesCome) return static_cast<long>(::send(fd(), kBytes, n, MSG_NOSIGNAL));
        if (happening == kPeerShuts) return static_cast<long>(::shutdown(fd(), SHUT_WR));
        return static_cast<long>(::close(fd()));
      });
      if (happening == kBytesCome && done > 0) c.sent(other, static_cast<std::size_t>(done));
      if (happening == kPeerShuts) c.shut(other, false, true);
      if (happening == kPeerCloses) lose(c, peer);
      turn_ = own;
      copy_ = copy;
    }
    end.dirty = false;  // it may be the thread that takes what has come
    const long value = turn([&] {
      const int at = fd();
      if (happening == kOwnShutdown) ::shutdown(at, SHUT_RD);
      if (happening == kOtherFile) take_out(end);
      if (happening == kOtherFile) ::dup2(marker(), at);
      ticks = 0;
      ticks_to_jump = 1;
      if (happening == kSignal || happening == kJump || happening == kOtherFile) {
        ::pthread_kill(errand.thread, SIGUSR2);
      }
      ::pthread_join(errand.thread, nullptr);
      static constexpr const char* kNames[] = {"bytes", "the peer's shutdown", "the peer's close", "a shutdown",
                                               "a signal", "a jump", "another file"};
      say(std::string(wait.name) + " until " + kNames[happening] + " = " + told_by);
      if (happening == kOtherFile) ::close(at);
      watched.reset();
      return errand.value;
    });
    if (wait.takes && value > 0) end.unread -= static_cast<std::size_t>(value);
    if (happening == kOwnShutdown) c.shut(own, true, false);
    if (happening == kOtherFile) lose(c, end);
    end.dirty = true;
  }

  // What is never ready, as a JVM ends a call of another thread: the number is made that file's, then a signal.
  int marker() {
    if (marker_ends_[0] < 0 && ::pipe2(marker_ends_, O_CLOEXEC) != 0) lost();
    return marker_ends_[0];
  }

  static long sleep_in(const Wait& wait, int at, int epoll, std::string& told_by) {
    if (sigsetjmp(outside_of_call, 1) != 0) {
      told_by = "jumped out of";
      return 0;
    }
    errno = 0;
    const long value = wait.make(at, epoll);
    told_by = answer(value);
    return value;
  }

  // A signal that is pending is let in by the wait's own mask.
  void opened_mask(End& end) {
    const int way = draw_.below(3);
    turn([&] {
      const Watched watched(fd());
      sigset_t blocked;
      sigset_t before;
      sigemptyset(&blocked);
      sigaddset(&blocked, SIGUSR2);
      handle(SIGUSR2, count_tick, 0);
      ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
      ticks = 0;
      ::raise(SIGUSR2);
      const timespec while_{2, 0};
      errno = 0;
      int n;
      if (way == 0) {
        pollfd one{fd(), POLLIN, 0};
        n = ::ppoll(&one, 1, &while_, &before);
      } else if (way == 1) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd(), &set);
        n = ::pselect(fd() + 1, &set, nullptr, nullptr, &while_, &before);
      } else {
        epoll_event event;
        n = ::epoll_pwait(watched.epoll(), &event, 1, 2000, &before);
      }
      const std::string shown = answer(n);
      const int within = ticks;
      ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
      say("a pending signal in wait " + std::to_string(way) + " = " + shown + ", " + std::to_string(within) + " of " +
          std::to_string(ticks) + " within");
      return 0L;
    });
    static_cast<void>(end);
  }

  // ---- Children

  void helper() {
    const int kind = draw_.below(8);
    if (!may_leave_channels()) return;
    turn([&] {
      static char program[] = "/bin/true";
      char* const arguments[] = {program, nullptr};
      pid_t child = -1;
      switch (kind) {
        case 0:
          child = ::fork();
          if (child == 0) ::_exit(0);
          break;
        case 1:
          child = ::fork();
          if (child == 0) {
            ::execv(program, arguments);
            ::_exit(1);
          }
          break;
        case 2:
          child = ::vfork();
          if (child == 0) {
            ::execv(program, arguments);
            ::_exit(1);
          }
          break;
        case 3:
          if (::posix_spawn(&child, program, nullptr, nullptr, arguments, environ) != 0) child = -1;
          break;
        case 4:
          child = ::fork();
          if (child == 0) {
            for (const Connection& c : connections_) {
              for (const Copy& copy : c.ends[side_].copies) ::close(copy.fd);
            }
            ::_exit(0);
          }
          break;
        case 5:
          child = ::fork();
          if (child == 0) std::exit(0);
          break;
        case 6:
          child = ::fork();
          if (child == 0) ::raise(SIGKILL);
          break;
        default:
          child = ::fork();
          if (child == 0) {
            const pid_t grandchild = ::fork();
            if (grandchild == 0) ::_exit(0);
            ::waitpid(grandchild, nullptr, 0);
            ::_exit(0);
          }
          break;
      }
      int status = -1;
      if (::waitpid(child, &status, 0) != child) status = -1;
      say("helper " + std::to_string(kind) + " = " + std::to_string(status));
      return 0L;
    });
    unsettle();
  }

  // A child that has a copy of everything and does nothing, for some operations.
  void keep_or_release() {
    if (keeps_[turn_]) {
      release();
      return;
    }
    if (!may_leave_channels()) return;
    turn([&] {
      if (::pipe2(keeper_ends_, O_CLOEXEC) != 0) lost();
      keeper_ = ::fork();
      if (keeper_ == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::close(keeper_ends_[1]);
        char byte;
        ::_exit(::read(keeper_ends_[0], &byte, 1) < 0 ? 1 : 0);
      }
      ::close(keeper_ends_[0]);
      keeper_ends_[0] = -1;
      say("a child keeps it all");
      return 0L;
    });
    keeps_[turn_] = true;
    for (Connection& c : connections_) c.ends[turn_].held = c.ends[turn_].open();
    unsettle();
  }

  void release() {
    if (!keeps_[turn_]) return;
    turn([&] {
      ::close(keeper_ends_[1]);
      keeper_ends_[1] = -1;
      end_of(keeper_);
      say("the child has ended");
      return 0L;
    });
    keeps_[turn_] = false;
    for (Connection& c : connections_) {
      End& end = c.ends[turn_];
      const bool was_held = end.held;
      end.held = false;
      if (was_held && !end.open()) c.closed(turn_);
    }
    unsettle();
  }

  // Until there is no room, and a sender that waits for some is interrupted. Then the peer reads it all.
  void flood(Connection& c) {
    const std::size_t chunk = 1 + static_cast<std::size_t>(draw_.below(60'000));
    End& end = c.ends[turn_];
    End& peer = c.ends[1 - turn_];
    if (end.shut_wr || end.reset || end.nonblocking || !peer.open() || peer.held || peer.shut_rd || peer.shut_wr ||
        peer.reset || peer.nonblocking) {
      return;
    }
    const long sent = turn([&] {
      const std::string bytes = patterned(0, chunk);
      long total = 0;
      ssize_t n;
      while ((n = ::send(fd(), bytes.data(), chunk, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0) total += n;
      const bool full = n == -1 && errno == EAGAIN;
      handle(SIGALRM, count_tick, 0);
      tick_every(kTickUs);
      while ((n = ::send(fd(), bytes.data(), chunk, MSG_NOSIGNAL)) > 0) total += n;
      const bool interrupted = n == -1 && errno == EINTR;
      tick_every(0);
      say(std::string("flood: ") + (full ? "full, " : "not full, ") + (interrupted ? "interrupted" : "goes on"));
      return total;
    });
    if (sent <= 0) return;
    const long all = sent + static_cast<long>(peer.unread);
    turn_ = 1 - turn_;
    copy_ = 0;
    peer.dirty = false;  // more is on its way than it knows of
    turn([&] {
      long total = 0;
      ssize_t n = 1;
      while (total < all && n > 0) {
        n = ::recv(fd(), received, std::min(sizeof received, static_cast<std::size_t>(all - total)), 0);
        if (n > 0) total += n;
      }
      say(std::string("the flood is ") + (total == all ? "all there" : "not all there: " + answer(n)));
      return 0L;
    });
    peer.unread = 0;
    end.dirty = peer.dirty = true;
  }

  const std::uint64_t seed_;
  const std::set<long> only_;
  Place elsewhere_ = Place::kHere;
  const Limit* limit_ = nullptr;
  int number_to_take_ = 0;
  bool take_all_ = false;
  bool keeps_[2] = {};  // either side
  pid_t keeper_ = -1;
  int keeper_ends_[2] = {-1, -1};
  int marker_ends_[2] = {-1, -1};
};

}  // namespace

void lower_limits_at_the_start(std::uint64_t seed) {
  constexpr struct {
    __rlimit_resource resource;
    rlim_t to;
    bool hard;
  } kAtTheStart[] = {{RLIMIT_FSIZE, 0, true},       {RLIMIT_MEMLOCK, 0, true},  {RLIMIT_NOFILE, 64, false},
                     {RLIMIT_NOFILE, 64, true},     {RLIMIT_NOFILE, 256, true}, {RLIMIT_SIGPENDING, 0, true},
                     {RLIMIT_STACK, 256 * 1024, true}};
  Draw draw(seed ^ 0x5eed);
  if (draw.one_in(2)) return;
  const auto& chosen = kAtTheStart[draw.below(static_cast<int>(std::size(kAtTheStart)))];
  rlimit limit{};
  ::getrlimit(chosen.resource, &limit);
  limit.rlim_cur = chosen.to;
  if (chosen.hard) limit.rlim_max = chosen.to;
  ::setrlimit(chosen.resource, &limit);
}

std::unique_ptr<Player> strange_player(int side, std::uint64_t seed, int to_peer, int from_peer,
                                       const std::vector<long>& only) {
  return std::make_unique<StrangePlayer>(side, seed, to_peer, from_peer, only);
}

}  // namespace ringroad::test
