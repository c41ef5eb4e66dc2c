#include "preload/runtime.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "preload/cancellation.h"
#include "preload/epolls.h"
#include "preload/fresh.h"
#include "preload/jumps.h"
#include "preload/lent_memory.h"
#include "preload/log.h"
#include "preload/policy_file.h"
#include "preload/real.h"
#include "rsocket-core/above_limit.h"
#include "rsocket-core/private_descriptors.h"
#include "rsocket-core/signals.h"
#include "rsocket-core/sys.h"

namespace ringroad::preload::runtime {

std::atomic<int> near_limit{std::numeric_limits<int>::max()};

namespace {

constexpr std::int64_t kLeaveTimeoutNs = 2'000'000'000;
constexpr std::int64_t kForkTimeoutNs = 1'000'000'000;

struct Environment {
  char policy[4096] = {};
  char log[1024] = {};
  char log_level[16] = {};
  char directory[200] = {};
  bool disabled = false;
};

Environment environment;
Mutex start_mutex;
std::atomic<bool> started{false};
std::atomic<Agent*> the_agent{nullptr};
std::atomic<stats::Segment*> segment{nullptr};
std::atomic<bool> segment_tried{false};  // in this process
Mutex segment_mutex;
pid_t owner = 0;
Family::Member child = 0;  // that is being forked; guarded by the table of descriptors
std::atomic<unsigned> fork_count{0};
std::atomic<bool> kernel_only{false};
Mutex room_mutex;
bool room_was_made RR_GUARDED_BY(room_mutex) = false;
std::atomic<bool> policy_edited{false};
std::atomic<int> execs_under_way{0};  // threads inside of exec
thread_local Agent* forked_agent = nullptr;  // this thread is between before_fork() and after it
thread_local bool fork_holds_start = false;  // the lock of the start, over the fork
thread_local bool fork_holds = false;  // this thread forks, and no stream is promoted meanwhile
Mutex establish_mutex;
Mutex inherit_mutex;
// 1 in the process whose memory this is and in its vfork children, 0 in a copy of it that no handler
// of fork(2) has seen: the page is wiped there (MADV_WIPEONFORK, madvise(2)).
std::atomic<std::atomic<int>*> same_memory{nullptr};
char program[64] = "unknown";  // the executable file's base name
char called[64] = "";          // argv[0]'s
// The rule that was found last for either role, and what is the same for whoever it is found for.
struct Found {
  const policy::Policy* policy = nullptr;
  const policy::Settings* rule = nullptr;
  std::array<std::uint8_t, 16> remote{};
  std::uint16_t port = 0;
};
constinit thread_local Found found[2] __attribute__((tls_model("initial-exec")));

void copy(char* to, std::size_t size, const char* from) noexcept {
  const std::size_t n = from == nullptr ? 0 : strnlen(from, size - 1);
  if (n > 0) std::memcpy(to, from, n);
  to[n] = '\0';
}

void find_program_name() noexcept {
  char path[4096];
  const long n = sys::call(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", path, sizeof path - 1);
  if (n <= 0) return;
  path[n] = '\0';
  const char* slash = std::strrchr(path, '/');
  copy(program, sizeof program, slash == nullptr ? path : slash + 1);
}

void log_line(const char* line) noexcept { log::write(log::Level::kInfo, line); }
bool wants_log() noexcept { return log::wants(log::Level::kInfo); }
void follow_log_of(const policy::Policy& policy) noexcept {
  log::follow_policy(policy.limits().log.c_str(), policy.limits().log_level.c_str());
}

// The verbs channel is an object of its own, beside this one, so that a process that meets no RDMA
// peer never maps libibverbs, and a host without it runs all the same.
Transport* load_verbs(TransportEvents& events, Reason& why) noexcept {
  static Reason told = Reason::kNone;  // it is tried now and then, by one thread
  Dl_info self{};
  why = Reason::kNoVerbsLibrary;
  if (dladdr(reinterpret_cast<void*>(&load_verbs), &self) == 0) return nullptr;
  char path[4096];
  const char* slash = std::strrchr(self.dli_fname, '/');
  const int directory = slash == nullptr ? 0 : static_cast<int>(slash - self.dli_fname + 1);
  std::snprintf(path, sizeof path, "%.*slibringroad-verbs.so", directory, self.dli_fname);
  void* object = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (object == nullptr) {
    const char* text = dlerror();
    if (std::exchange(told, why) != why) {
      log::write(log::Level::kWarn, text == nullptr ? "cannot load libringroad-verbs.so" : text);
    }
    return nullptr;
  }
  auto* entry = reinterpret_cast<VerbsEntryPoint>(dlsym(object, kVerbsEntryPoint));
  if (entry == nullptr) return nullptr;
  VerbsHost host{};
  host.abi = kVerbsAbi;
  host.events = &events;
  host.next_id = Agent::next_promotion_id;
  host.adopt_fd = [](int fd) noexcept { return above_limit(sys::move_high(fd)); };
  host.share_fd = [](int fd) noexcept {
    const int high = sys::move_high(fd, true);  // what the libraries cannot do without
    private_descriptors::keep_in_children(high);
    return high;
  };
  host.release_fd = [](int fd) noexcept { private_descriptors::unmark(fd); };
  Transport* transport = entry(host, &why);
  if (transport == nullptr && std::exchange(told, why) != why) {
    log::write(log::Level::kWarn, reason_text(why));
  }
  return transport;
}

// ---- the policy

void publish_policy(stats::PolicyStatus status, std::size_t rules, const char* detail) noexcept {
  stats::Segment* const own = segment.load(std::memory_order_acquire);
  if (own == nullptr) return;
  stats::SegmentHeader& header = own->header();
  const std::uint32_t sequence = header.policy_sequence.load(std::memory_order_relaxed);
  header.policy_sequence.store(sequence + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  header.policy_rules = static_cast<std::uint32_t>(rules);
  copy(header.policy_detail, sizeof header.policy_detail, detail);
  header.policy_status.store(static_cast<std::uint32_t>(status), std::memory_order_relaxed);
  header.policy_sequence.store(sequence + 2, std::memory_order_release);
}

// The statistics of this process, made when they are asked for first; null: they cannot be.
stats::Segment* own_segment() noexcept {
  if (!segment_tried.load(std::memory_order_acquire)) {
    const signals::Later whole;  // a handler may ask for them, too
    MutexLock lock(segment_mutex);
    if (!segment_tried.load(std::memory_order_relaxed)) {
      stats::Segment* const made = stats::Segment::create(environment.directory, program);
      if (made != nullptr) made->header().operator_mode.store(made->mode_before_exec());
      segment.store(made, std::memory_order_release);
      if (const policy::Policy* policy = policy_file::current(); policy != nullptr) {
        publish_policy(stats::PolicyStatus::kLoaded, policy->rule_count(), "");
      }
      segment_tried.store(true, std::memory_order_release);
    }
  }
  return segment.load(std::memory_order_acquire);
}

const policy::Settings* rule_for(StreamRole role, const Endpoint& local,
                                 const Endpoint& remote) noexcept;

bool allows(StreamRole role, const FourTuple& tuple) noexcept {
  const policy::Settings* rule = rule_for(role, tuple.local, tuple.remote);
  return rule != nullptr && rule->via != policy::Via::kTcp;
}

bool tell(AgentOptions::Untold which, const Endpoint& remote) noexcept {
  const descriptors::Change none_is_closed;
  return fresh::tell(which, remote);
}

unsigned max_channels() noexcept { return policy_file::current()->limits().max_channels; }

// On the agent thread, as all that concerns edits.
bool reload_policy(int watch_fd) noexcept {
  using What = policy_file::Outcome::What;
  try {
    const policy_file::Outcome outcome = policy_file::reload(watch_fd);
    if (outcome.what == What::kSame) return false;
    const std::size_t rules = policy_file::current()->rule_count();
    if (outcome.what == What::kRefused) {
      publish_policy(stats::PolicyStatus::kEditRefused, rules, outcome.detail.c_str());
      log::write(
          log::Level::kWarn,
          ("the edited policy is refused, the one before it holds: " + outcome.detail).c_str());
      return false;
    }
    follow_log_of(*policy_file::current());
    publish_policy(stats::PolicyStatus::kLoaded, rules, outcome.detail.c_str());
    if (stats::Segment* own = segment.load()) own->header().policy_reloads.fetch_add(1);
    policy_edited.store(true, std::memory_order_relaxed);
    log::write(log::Level::kInfo, ("the policy was edited: " + outcome.detail).c_str());
    return true;
  } catch (...) {
    log::write(log::Level::kError, "out of memory: an edit of the policy is not taken up");
    return false;
  }
}

// ---- fork

void claim_memory() noexcept {
  owner = sys::getpid();
  if (std::atomic<int>* same = same_memory.load()) same->store(1);
}

void make_wiped_page() noexcept {
  constexpr std::size_t kBytes = 4096;
  void* page = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  // Emulators may take any advice, and follow none.
  constexpr int kNoAdvice = -1;
  if (madvise(page, kBytes, kNoAdvice) == 0 || madvise(page, kBytes, MADV_WIPEONFORK) != 0) {
    munmap(page, kBytes);
    return;
  }
  same_memory.store(new (page) std::atomic<int>(0), std::memory_order_release);
}

void before_fork() noexcept {
  // These handlers are registered twice: see wait_for_start().
  if (forked_agent != nullptr) return;
  Agent* agent = forked_agent = the_agent.load();
  if (agent == nullptr) return;
  // The child shares every descriptor and may use any of them: every stream returns to the kernel, and
  // stays there until one process is left that has it.
  tell(AgentOptions::Untold::kAll, {});
  fork_holds = owns_memory();
  if (fork_holds) agent->leave_all(Reason::kFork, kForkTimeoutNs);
  agent->pin_unshareable();
  epolls::lend_all();
  descriptors::lock_for_fork();
  child = agent->expect_child();
  descriptors::share_with_child(*agent, child);
  agent->before_fork();
}

void after_fork_parent() noexcept {
  Agent* agent = std::exchange(forked_agent, nullptr);
  if (agent == nullptr) return;
  agent->after_fork_parent();
  if (std::exchange(fork_holds, false)) agent->stay();
  // With the table locked: who has taken a descriptor from the kernel and waits to enter it sees that the
  // child has it too.
  fork_count.fetch_add(1, std::memory_order_relaxed);
  descriptors::unlock_after_fork();
}

void after_fork_child() noexcept {
  sys::DescriptorTurn::forget();
  signals::forget_after_fork();
  jumps::after_fork_child();
  Agent* agent = std::exchange(forked_agent, nullptr);
  if (agent == nullptr) return;
  claim_memory();
  segment_mutex.reset_after_fork();
  // The segment is the parent's; the child makes its own when it needs one. Streams of the parent's
  // keep pointing at the old one, and are never touched again.
  stats::Segment* const parents = segment.exchange(nullptr);
  segment_tried.store(false);
  execs_under_way.store(0);
  fork_holds = false;
  near_limit.store(0, std::memory_order_relaxed);  // it may be given another limit
  agent->after_fork_child();
  // What an operator has said holds for the program that the child becomes, too (stats.h).
  const std::uint32_t mode =
      parents == nullptr ? 0 : parents->header().operator_mode.load(std::memory_order_relaxed);
  if (mode != static_cast<std::uint32_t>(control::Mode::kAuto)) {
    if (stats::Segment* own = own_segment()) own->header().operator_mode.store(mode);
  }
  establish_mutex.reset_after_fork();
  fresh::after_fork_child();
  inherit_mutex.reset_after_fork();
  room_mutex.reset_after_fork();
  epolls::after_fork_child();
  descriptors::after_fork_child(agent->family().join(child));
  forget_wake_fds_after_fork();
  private_descriptors::leave_to_parent([](int fd) noexcept { sys::close_quietly(fd); });
}

// ---- start

// A fork that comes while another thread starts the library waits for the end of that, for a while only:
// the other thread may want a lock that an allocator has taken for this very fork, or this thread may
// be in a handler that has interrupted the start.
void wait_for_start() noexcept RR_NO_THREAD_SAFETY_ANALYSIS {
  constexpr int kNaps = 1000;
  const timespec nap{0, 1'000'000};
  const int saved = errno;
  for (int i = 0; i < kNaps && !started.load(std::memory_order_acquire); ++i) {
    fork_holds_start = start_mutex.try_lock();
    if (fork_holds_start) break;
    sys::call(SYS_nanosleep, &nap, nullptr);
  }
  before_fork();  // the start has ended only now, or it has run already
  errno = saved;
}

void let_others_start() noexcept RR_NO_THREAD_SAFETY_ANALYSIS {
  if (std::exchange(fork_holds_start, false)) start_mutex.unlock();
  after_fork_parent();
}

// Where the fork has not waited long enough the child has nobody to end the start: it starts anew.
void forget_half_a_start() noexcept {
  const bool held = std::exchange(fork_holds_start, false);
  if (forked_agent != nullptr) return after_fork_child();
  signals::forget_after_fork();
  jumps::after_fork_child();
  start_mutex.reset_after_fork();
  if (the_agent.load() == nullptr && (held || started.load())) return;  // nothing is half done
  started.store(false);
  segment_mutex.reset_after_fork();
  segment.store(nullptr);
  segment_tried.store(false);
  the_agent.store(nullptr);
}

// What the parser of policies needs is more than a thread with the smallest stack has.
constexpr std::size_t kRoomForParser = 128 * 1024;

// The process' first thread has enough, and to ask for its bounds is dear.
bool has_room_for_parser() noexcept {
  if (sys::raw(SYS_gettid) == sys::getpid()) return true;
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return true;
  void* lowest = nullptr;
  std::size_t size = 0;
  pthread_attr_getstack(&attributes, &lowest, &size);
  pthread_attr_destroy(&attributes);
  return static_cast<std::size_t>(static_cast<char*>(__builtin_frame_address(0)) -
                                  static_cast<char*>(lowest)) >= kRoomForParser;
}

struct Loading {
  policy_file::Outcome outcome;
  bool failed = false;
};

void* load_in_thread(void* data) noexcept {
  auto* loading = static_cast<Loading*>(data);
  try {
    loading->outcome = policy_file::load(environment.policy);
  } catch (...) {
    loading->failed = true;
  }
  return nullptr;
}

// Has the caller's thread wait for one with room enough, if it has too little.
policy_file::Outcome load_policy() {
  if (has_room_for_parser()) return policy_file::load(environment.policy);
  Loading loading;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int cancel_state = 0;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 2 * kRoomForParser);
  pthread_t thread;
  loading.failed = pthread_create(&thread, &attributes, load_in_thread, &loading) != 0;
  if (!loading.failed) pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  pthread_setcancelstate(cancel_state, nullptr);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (loading.failed) throw std::bad_alloc();
  return std::move(loading.outcome);
}

void start() noexcept {
  find_program_name();
  make_wiped_page();
  claim_memory();
  log::start(environment.log, environment.log_level, program);
  try {
    const policy_file::Outcome outcome = load_policy();
    const policy::Policy* policy = policy_file::current();
    if (policy == nullptr) {
      own_segment();
      publish_policy(stats::PolicyStatus::kRefused, 0, outcome.detail.c_str());
      log::write(log::Level::kWarn,
                 ("policy refused, every connection stays on TCP: " + outcome.detail).c_str());
      return;
    }
    follow_log_of(*policy);
    bool lets_off = false;
    for (std::size_t i = 0; i < policy->rule_count(); ++i) {
      lets_off |= policy->rule(i).via != policy::Via::kTcp;
    }
    if (!lets_off) return;
    stats::Segment* const own = own_segment();
    publish_policy(stats::PolicyStatus::kLoaded, policy->rule_count(), outcome.detail.c_str());
    AgentOptions options;
    options.load_verbs = load_verbs;
    options.segment = own_segment;
    if (own != nullptr) options.mode = static_cast<control::Mode>(own->mode_before_exec());
    options.watch_policy = policy_file::watch;
    options.take_policy_events = policy_file::take_events;
    options.reload_policy = reload_policy;
    options.allows = allows;
    options.max_channels = max_channels;
    options.tell = tell;
    options.take_back = epolls::take_back;
    options.waits_past = epolls::waits_past;
    options.log = log_line;
    options.wants_log = wants_log;
    // Here, not when the library is loaded: handlers that come later run earlier before a fork, and an
    // allocator of the program's that registers its own must not be locked yet when ours run.
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    set_sleep(cancellation::ppoll, cancellation::held_ppoll);
    the_agent.store(new Agent(options), std::memory_order_release);
    near_limit.store(0, std::memory_order_relaxed);  // the first descriptor finds out
  } catch (...) {
    log::write(log::Level::kError, "out of memory: every connection stays on TCP");
  }
}

policy::Endpoint to_policy(const Endpoint& endpoint) noexcept {
  policy::Endpoint out;
  out.addr = endpoint.is_v4() ? policy::Address::from_ipv4(endpoint.addr.data() + 12)
                              : policy::Address::from_ipv6(endpoint.addr.data());
  out.port = endpoint.port;
  return out;
}

const policy::Settings* rule_for(StreamRole role, const Endpoint& local,
                                 const Endpoint& remote) noexcept {
  const policy::Policy* policy = policy_file::current();
  if (policy == nullptr) return nullptr;
  const bool connects = role == StreamRole::kConnect;
  const std::uint16_t port = connects ? remote.port : local.port;  // the service's
  Found& last = found[connects ? 0 : 1];
  if (last.policy != policy || last.port != port || last.remote != remote.addr) {
    const policy::Settings* rule =
        policy->match(connects ? policy::Role::kConnect : policy::Role::kAccept,
                      policy::Program(program, called), to_policy(local), to_policy(remote));
    last = {policy, rule, remote.addr, port};
  }
  return last.rule;
}

}  // namespace

bool policy_was_edited() noexcept { return policy_edited.load(std::memory_order_relaxed); }

void watch_forks() noexcept { pthread_atfork(wait_for_start, let_others_start, forget_half_a_start); }

void capture_start(const char* argv0) noexcept {
  if (argv0 != nullptr) {
    const char* slash = std::strrchr(argv0, '/');
    copy(called, sizeof called, slash == nullptr ? argv0 : slash + 1);
  }
  const char* disable = std::getenv("RINGROAD_DISABLE");
  environment.disabled = disable != nullptr && *disable != '\0' && std::strcmp(disable, "0") != 0;
  copy(environment.policy, sizeof environment.policy, std::getenv("RINGROAD_POLICY"));
  copy(environment.log, sizeof environment.log, std::getenv("RINGROAD_LOG"));
  copy(environment.log_level, sizeof environment.log_level, std::getenv("RINGROAD_LOG_LEVEL"));
  const char* directory = std::getenv("RINGROAD_RUNTIME_DIR");
  copy(environment.directory, sizeof environment.directory,
       directory == nullptr || *directory == '\0' ? stats::kDefaultDirectory : directory);
}

Agent* existing_agent() noexcept { return the_agent.load(std::memory_order_acquire); }

Agent* agent() noexcept {
  if (environment.disabled) return nullptr;
  if (!started.load(std::memory_order_acquire)) {
    if (signals::thread_state.in_handler) return nullptr;  // the next call outside of one starts
    const int saved = errno;
    MutexLock lock(start_mutex);
    if (!started.load(std::memory_order_relaxed)) {
      start();
      started.store(true, std::memory_order_release);
    }
    errno = saved;
  }
  return existing_agent();
}

bool owns_memory() noexcept { return sys::getpid() == owner; }

bool owns_numbers() noexcept {
  // Where nobody has borrowed the memory, who has it and is no copy is its owner.
  const bool lent = rr_memory_was_lent.load(std::memory_order_relaxed);
  return (!lent && shares_memory()) || owns_memory();
}

bool shares_memory() noexcept {
  const std::atomic<int>* same = same_memory.load(std::memory_order_acquire);
  return same != nullptr && same->load() == 1;
}

const policy::Settings* rule_of(StreamRole role, const Endpoint& local,
                                const Endpoint& remote) noexcept {
  if (on_kernel_only()) return nullptr;
  const policy::Settings* rule = rule_for(role, local, remote);
  return rule == nullptr || rule->via == policy::Via::kTcp ? nullptr : rule;
}

void configure(const policy::Settings& rule, StreamConfig& config) noexcept {
  config = StreamConfig{};
  copy(config.rule, sizeof config.rule, rule.name.c_str());
  copy(config.device, sizeof config.device, rule.device.c_str());
  config.via_shm = rule.via == policy::Via::kShm || rule.via == policy::Via::kAuto;
  config.via_rdma = rule.via == policy::Via::kRdma || rule.via == policy::Via::kAuto;
  if (!rule.key.empty()) config.key = SharedKey::of(rule.key.data(), rule.key.size());
  config.has_traffic_class = rule.traffic_class.has_value();
  config.traffic_class = rule.traffic_class.value_or(0);
  config.ring_bytes = rule.ring_bytes;
  config.spin_ns = rule.spin.count();
  config.wait_ns = rule.wait.count();
  config.idle_ns = rule.idle.count();
  config.detect_ns = rule.detect.count();
  config.promote_messages = rule.promote_after.messages.value_or(config.promote_messages);
  config.promote_bytes = rule.promote_after.bytes.value_or(config.promote_bytes);
}

bool is_tcp(int fd) noexcept {
  int value = 0;
  socklen_t length = sizeof value;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &value, &length) != 0) return false;
  return value == IPPROTO_TCP;
}

void count_early(const policy::Settings& rule, const EarlyUse& early) noexcept {
  stats::Segment* const own = own_segment();
  if (own == nullptr) return;
  // The one whose index was asked for last: a segment's indices do not change.
  struct Index {
    const stats::Segment* segment;
    const policy::Settings* rule;
    std::uint8_t value;
  };
  static constinit thread_local Index last __attribute__((tls_model("initial-exec"))) = {};
  if (last.segment != own || last.rule != &rule) {
    last = {own, &rule, own->rule_index(rule.name.c_str())};
  }
  own->count_early(last.value, early);
}

bool may_accept(const Endpoint& local, bool& via_shm, bool& via_rdma) noexcept {
  via_shm = via_rdma = false;
  const policy::Policy* policy = policy_file::current();
  if (policy == nullptr) return false;
  const policy::Reach reach = policy->reach(policy::Role::kAccept, policy::Program(program, called), local.port);
  via_shm = reach.shm;
  via_rdma = reach.rdma;
  return via_shm || via_rdma;
}

SocketRef adopt(int fd, StreamRole role, const FourTuple& tuple, const StreamConfig& config,
                bool nonblocking, bool fresh) noexcept {
  const signals::Later whole;
  if (descriptors::reads_unusually(fd)) return {};
  const int saved = errno;
  SocketRef socket;
  if (Agent* agent = existing_agent()) {
    StreamPtr stream = agent->open_stream(fd, role, tuple, config, nonblocking);
    if (stream != nullptr) {
      if (!fresh) epolls::take_over(fd, stream);
      socket = descriptors::find(fd);
      if (socket.is(Socket::Kind::kConnecting)) {
        socket->stream = std::move(stream);
        socket->kind.store(Socket::Kind::kStream, std::memory_order_release);
      } else {
        socket = descriptors::insert(fd, Socket::Kind::kConnecting);
        if (socket) {
          socket->stream = std::move(stream);
          socket->kind.store(Socket::Kind::kStream, std::memory_order_release);
        }
      }
    }
  }
  errno = saved;
  return socket;
}

bool on_kernel_only() noexcept { return kernel_only.load(std::memory_order_relaxed); }

unsigned forks() noexcept { return fork_count.load(std::memory_order_relaxed); }

void use_the_kernel_only(Reason reason) noexcept {
  Agent* agent = existing_agent();
  if (kernel_only.load() || (agent != nullptr && !owns_memory())) return;
  const int saved = errno;
  tell(AgentOptions::Untold::kAll, {});  // for them to be seen
  kernel_only.store(true);
  tell(AgentOptions::Untold::kAll, {});  // and those that came just now
  descriptors::leave_inherited();
  if (agent != nullptr) {
    agent->leave_all(reason, kLeaveTimeoutNs);
    agent->pin_all(reason);
  }
  errno = saved;
}

namespace {

constexpr int kNoLimit = std::numeric_limits<int>::max();

bool own_limit(rlimit& most) noexcept {
  return sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &most) == 0;
}

// For calls that the library does not see, and for as many as one message can bring.
constexpr rlim_t kMostReserved = 1024;

// Where the hard limit is higher the library's own are above the soft one (above_limit.h).
int nearness(const rlimit& most) noexcept {
  if (most.rlim_cur < most.rlim_max || most.rlim_cur >= static_cast<rlim_t>(kNoLimit)) return kNoLimit;
  return static_cast<int>(most.rlim_cur - std::min(most.rlim_cur / 4, kMostReserved));
}

// The process is the kernel's from now on, and its descriptors are the program's, as far as that can be.
bool give_back_descriptors() noexcept {
  Agent* agent = existing_agent();
  // A handler may have interrupted the thread that has a lock. The agent thread would wait for itself.
  if (agent == nullptr || agent->runs_here() || signals::thread_state.in_handler || !owns_memory()) return false;
  MutexLock lock(room_mutex);  // a thread that comes while another does it has that room, too
  if (std::exchange(room_was_made, true)) return true;
  use_the_kernel_only(Reason::kNoDescriptors);
  agent->step_aside(kLeaveTimeoutNs);  // which also settles that streams are the kernel's
  epolls::retire();
  close_thread_wake_fd();
  return true;
}

}  // namespace

bool made_room() noexcept {
  const int saved = errno;
  // A file system may have said EMFILE for itself, and another thread may have closed some. No call needs more than two.
  int both[2];
  if (sys::call(SYS_pipe2, both, O_CLOEXEC) == 0) {
    for (const int end : both) sys::close_quietly(end);
    errno = saved;
    return true;
  }
  rlimit most{};
  const bool holds_some =
      own_limit(most) && private_descriptors::any_below(static_cast<int>(std::min<rlim_t>(
                             most.rlim_cur, static_cast<rlim_t>(private_descriptors::kLimit))));
  const bool made = holds_some && give_back_descriptors();
  errno = saved;
  return made;
}

bool gives_way(int number) noexcept {
  const int saved = errno;
  rlimit most{};
  const bool may_have_it = own_limit(most) && static_cast<rlim_t>(number) < most.rlim_cur;
  const bool gives =
      may_have_it && give_back_descriptors() && !private_descriptors::is_marked(number);
  errno = saved;
  return gives;
}

void come_near(int number) noexcept {
  const int saved = errno;
  rlimit most{};
  if (own_limit(most) && owns_memory()) {
    // The program may have another limit by now.
    near_limit.store(nearness(most), std::memory_order_relaxed);
    if (number >= near_limit.load(std::memory_order_relaxed) && give_back_descriptors()) {
      near_limit.store(kNoLimit, std::memory_order_relaxed);
    }
  }
  errno = saved;
}

void inherit(int fd, const SocketRef& socket) noexcept {
  Agent* agent = existing_agent();
  if (agent == nullptr || !owns_memory()) return;
  const int saved = errno;
  // Before any call of this process has reached the kernel, or the library could not know what is
  // going on there.
  {
    MutexLock lock(inherit_mutex);
    if (socket.is(Socket::Kind::kInherited)) {
      StreamPtr stream =
          agent->inherit_stream(fd, socket->role, socket->tuple, socket->config, socket->share);
      if (stream != nullptr) {
        if (socket->lent) {
          // The instance that it is in is the parent's, too, and not this process' to change.
          stream->pin(Reason::kFork, 0);
        } else {
          epolls::take_over(fd, stream);
        }
        socket->stream = std::move(stream);
        socket->kind.store(Socket::Kind::kStream, std::memory_order_release);
      } else {
        descriptors::leave_inherited();  // no thread, or no memory, and so no next time
      }
    }
  }
  errno = saved;
}

bool established(int fd, const SocketRef& socket) noexcept {
  const int saved = errno;
  const unsigned forks_before = forks();
  FourTuple tuple;
  // Two threads may find it connected at once; one of them makes the stream.
  bool connected = false;
  {
    MutexLock lock(establish_mutex);
    if (socket.is(Socket::Kind::kStream)) return true;
    if (socket.is(Socket::Kind::kConnecting) && Endpoint::peer_of(fd, tuple.remote) &&
        Endpoint::local_of(fd, tuple.local)) {
      const int flags = sys::fcntl(fd, F_GETFL);
      connected = static_cast<bool>(adopt(fd, StreamRole::kConnect, tuple, socket->config,
                                          (flags & O_NONBLOCK) != 0, false));
    }
  }
  Stream* stream = connected ? socket.stream() : nullptr;
  if (stream != nullptr) {
    // A child has it too, and neither knows of the other.
    if (socket->forked || forks() != forks_before) stream->pin(Reason::kFork, 0);
    stream->note_use(0, 0);
    if (stream->config().wait_ns > 0 && stream->config().promote_messages == 0) {
      stream->wait_promoted(stream->config().wait_ns);
    }
  }
  errno = saved;
  return stream != nullptr;
}

void give_away(int fd, Reason reason) noexcept {
  if (!descriptors::managed(fd)) return;
  const bool own = owns_memory();
  if (!own && !shares_memory()) return;
  const SocketRef socket = descriptors::find(fd);
  Stream* stream = socket.stream();
  if (stream == nullptr || stream->on_kernel_for_good()) return;
  if (stream->pin(reason, kLeaveTimeoutNs, own)) return;
  if (reason == Reason::kExec || reason == Reason::kFdPassed) stream->cut_unless_served();
}

void give_away_stdio() noexcept {
  for (int fd = 0; fd <= 2; ++fd) give_away(fd, Reason::kExec);
}

bool leave(Reason reason) noexcept {
  Agent* agent = existing_agent();
  if (agent == nullptr) return false;
  if (!owns_memory()) {
    if (reason == Reason::kExec) give_away_stdio();
    return false;
  }
  const int saved = errno;
  if (reason == Reason::kExec) execs_under_way.fetch_add(1);
  agent->leave_all(reason, kLeaveTimeoutNs);
  if (reason == Reason::kExec) descriptors::keep_over_exec(*agent);
  if (reason == Reason::kExit) agent->family().resign();
  if (stats::Segment* own = segment.load(); reason == Reason::kExit && own != nullptr) {
    own->remove_file();
  }
  errno = saved;
  return true;
}

void exec_failed() noexcept {
  Agent* agent = existing_agent();
  const int saved = errno;
  if (execs_under_way.fetch_sub(1) == 1) descriptors::go_on_after_exec(*agent);
  agent->stay();
  errno = saved;
}

}  // namespace ringroad::preload::runtime
