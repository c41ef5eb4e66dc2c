#include "preload/policy_loading.h"

#include <pthread.h>
#include <sys/syscall.h>

#include <atomic>
#include <new>
#include <utility>

#include "preload/log.h"
#include "preload/policy_file.h"
#include "preload/process_stats.h"
#include "rsocket-core/base/signal_masks.h"
#include "rsocket-core/base/sys.h"
#include "rsocket-core/base/threads.h"

namespace ringroad::preload::policy_loading {
namespace {

std::atomic<bool> edited{false};

// What the parser of policies needs is more than a thread with the smallest stack has.
constexpr std::size_t kStackForParser = 128 * 1024;

// The process' first thread has enough, and to ask for its bounds is dear.
bool has_stack_for_parser() noexcept {
  if (sys::raw(SYS_gettid) == sys::getpid()) return true;
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return true;
  void* lowest = nullptr;
  std::size_t size = 0;
  pthread_attr_getstack(&attributes, &lowest, &size);
  pthread_attr_destroy(&attributes);
  return static_cast<std::size_t>(static_cast<char*>(__builtin_frame_address(0)) -
                                  static_cast<char*>(lowest)) >= kStackForParser;
}

struct Loading {
  const char* named;
  policy_file::Outcome outcome;
  bool failed = false;
};

void* load_in_thread(void* data) noexcept {
  auto* loading = static_cast<Loading*>(data);
  try {
    loading->outcome = policy_file::load(loading->named);
  } catch (...) {
    loading->failed = true;
  }
  return nullptr;
}

// Where the caller's thread has too little stack, it waits for one that has enough.
policy_file::Outcome load_with_stack(const char* named) {
  if (has_stack_for_parser()) return policy_file::load(named);
  Loading loading;
  loading.named = named;
  {
    const signals::BlockAll until_joined;  // a handler that jumps would leave the thread what is gone
    int cancel_state = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    pthread_t thread;
    loading.failed = !start_thread(thread, Ends::kJoined, 2 * kStackForParser, load_in_thread, &loading);
    if (!loading.failed) pthread_join(thread, nullptr);
    pthread_setcancelstate(cancel_state, nullptr);
  }
  if (loading.failed) throw std::bad_alloc();
  return std::move(loading.outcome);
}

void follow_log_of(const policy::Policy& policy) noexcept {
  log::follow_policy(policy.limits().log.c_str(), policy.limits().log_level.c_str());
}

}  // namespace

Loaded load(const char* named) {
  const policy_file::Outcome outcome = load_with_stack(named);
  const policy::Policy* policy = policy_file::current();
  if (policy == nullptr) {
    process_stats::own_segment();
    process_stats::publish_policy(stats::PolicyStatus::kRefused, 0, outcome.detail.c_str());
    log::write(log::Level::kWarn,
               ("policy refused, every connection stays on TCP: " + outcome.detail).c_str());
    return Loaded::kNone;
  }
  follow_log_of(*policy);
  bool lets_off = false;
  for (std::size_t i = 0; i < policy->rule_count(); ++i) {
    lets_off |= policy->rule(i).via != policy::Via::kTcp;
  }
  if (!lets_off) return Loaded::kTcpOnly;
  process_stats::own_segment();
  process_stats::publish_policy(stats::PolicyStatus::kLoaded, policy->rule_count(),
                                outcome.detail.c_str());
  return Loaded::kLetsOff;
}

bool reload(int watch_fd) noexcept {
  using What = policy_file::Outcome::What;
  try {
    const policy_file::Outcome outcome = policy_file::reload(watch_fd);
    if (outcome.what == What::kSame) return false;
    const std::size_t rules = policy_file::current()->rule_count();
    if (outcome.what == What::kRefused) {
      process_stats::publish_policy(stats::PolicyStatus::kEditRefused, rules, outcome.detail.c_str());
      log::write(
          log::Level::kWarn,
          ("the edited policy is refused, the one before it holds: " + outcome.detail).c_str());
      return false;
    }
    follow_log_of(*policy_file::current());
    process_stats::publish_policy(stats::PolicyStatus::kLoaded, rules, outcome.detail.c_str());
    if (stats::Segment* own = process_stats::existing_segment()) {
      own->header().policy_reloads.fetch_add(1);
    }
    edited.store(true, std::memory_order_relaxed);
    const std::string now =
        outcome.detail.empty() ? "it has no file, every connection stays on TCP" : outcome.detail;
    log::write(log::Level::kInfo, ("the policy was edited: " + now).c_str());
    return true;
  } catch (...) {
    log::write(log::Level::kError, "out of memory: an edit of the policy is not taken up");
    return false;
  }
}

bool was_edited() noexcept { return edited.load(std::memory_order_relaxed); }

}  // namespace ringroad::preload::policy_loading
