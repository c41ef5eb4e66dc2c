#include "preload/verbs_loader.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "preload/log.h"
#include "rsocket-core/agent/agent.h"
#include "rsocket-core/base/above_limit.h"
#include "rsocket-core/base/faults.h"
#include "rsocket-core/base/reserved_fds.h"
#include "rsocket-core/base/sys.h"

namespace ringroad::preload {

Transport* load_verbs(TransportEvents& events, Reason& why) noexcept {
  static Reason told = Reason::kNone;
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
    reserved_fds::keep_in_children(high);
    return high;
  };
  host.release_fd = [](int fd) noexcept { reserved_fds::unmark(fd); };
  host.recover_also_by = faults::recover_also_by;
  Transport* transport = entry(host, &why);
  if (transport == nullptr && std::exchange(told, why) != why) {
    log::write(log::Level::kWarn, reason_text(why));
  }
  return transport;
}

}  // namespace ringroad::preload
