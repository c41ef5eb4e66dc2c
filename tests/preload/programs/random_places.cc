// Where StrangePlayer does an ordinary operation.
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <iterator>

#include "tests/preload/programs/random_strange_player.h"

namespace ringroad::test {

namespace {

constexpr int kRainUs = 300;
constexpr unsigned kChildAlarmS = 20;  // one that hangs is to be told from one that ends

}  // namespace

long StrangePlayer::perform(const std::function<long()>& call) {
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

long StrangePlayer::in_a_thread(const std::function<long()>& call, Ending ending, bool smallest_stack,
                                const char* where) {
  where_ = where;
  Errand errand;
  errand.call = call;
  errand.ending = ending;
  start(errand, smallest_stack);
  ::pthread_join(errand.thread, nullptr);
  return errand.value;
}

long StrangePlayer::in_a_handler(const std::function<long()>& call, bool other_stack) {
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

long StrangePlayer::in_a_child(const std::function<long()>& call) {
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

void StrangePlayer::settle_own() {
  for (Connection& c : connections_) {
    c.ends[side_].dirty = true;
    settle(static_cast<int>(&c - connections_), c.ends[side_]);
  }
}

void StrangePlayer::end_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) say("the child ended with signal " + std::to_string(WTERMSIG(status)));
}

long StrangePlayer::in_the_rain(const std::function<long()>& call) {
  where_ = "in the rain: ";
  handle(SIGALRM, count_tick, SA_RESTART);
  tick_every(kRainUs);
  const long value = call();
  tick_every(0);
  return value;
}

long StrangePlayer::under_a_limit(const std::function<long()>& call) {
  const bool connects = !connections_[place_].ends[side_].open();
  // Left out: poll(2) of more entries than the limit, see docs/compatibility.md.
  const bool too_many = polls_ && limit_->resource == RLIMIT_NOFILE && limit_->to < kConnections;
  if (connects || too_many) return call();
  where_ = std::string("with ") + limit_->name + ": ";
  const Lowered lowered(*limit_);
  return call();
}

long StrangePlayer::behind_closed_numbers(const std::function<long()>& call) {
  where_ = "with other numbers closed: ";
  const std::set<int> own = own_numbers();
  for (const int fd : all_numbers()) {
    const bool fails = own.count(fd) == 0 && ::close(fd) != 0 && errno != EBADF;
    if (fails) say("close of another number: " + answer(-1));
  }
  ::close_range(static_cast<unsigned>(*own.rbegin()) + 1, UINT_MAX, 0);
  ::closefrom(*own.rbegin() + 1);
  return call();
}

long StrangePlayer::behind_taken_numbers(const std::function<long()>& call) {
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

std::vector<int> StrangePlayer::all_numbers() {
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

std::set<int> StrangePlayer::own_numbers() const {
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

}  // namespace ringroad::test
