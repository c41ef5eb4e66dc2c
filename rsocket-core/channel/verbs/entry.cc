// The one symbol that the loadable object exports.
#include "rsocket-core/base/faults.h"
#include "rsocket-core/channel/verbs/verbs_transport.h"

extern "C" __attribute__((visibility("default"))) ringroad::Transport* ringroad_verbs_transport(
    const ringroad::VerbsHost& host, ringroad::Reason* why) noexcept {
  if (host.abi != ringroad::kVerbsAbi) {
    *why = ringroad::Reason::kNoVerbsLibrary;
    return nullptr;
  }
  host.recover_also_by(ringroad::faults::recover);
  return ringroad::VerbsTransport::create(host, *why).release();
}

static_assert(std::is_same_v<decltype(&ringroad_verbs_transport), ringroad::VerbsEntryPoint>);
