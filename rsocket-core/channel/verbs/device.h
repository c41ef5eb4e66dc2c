// What is shared between channels of one process: whether the host has RDMA at all, what an error
// of the libraries means, and protection domains.
//
// libibverbs writes warnings to stderr, which belongs to a stranger here. check_host() keeps away
// from the calls that would, by looking first:
//   RLIMIT_MEMLOCK of 32 KiB or less, not root   refused as kMemlock (init.c: check_memlock_limit)
//   kernel ABI out of range                      refused as kNoRdmaDevice (init.c: check_abi_version)
//   no configuration folder                      refused as kNoRdmaDevice (dynamic_driver.c)
// What remains: a provider library that is configured in /etc/libibverbs.d but missing or broken
// ("couldn't load driver"), a provider and kernel of incompatible versions, and the variables
// IBV_SHOW_WARNINGS and RDMAV_FORK_SAFE, by which somebody asks for output.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <memory>

#include "rsocket-core/base/mutex.h"
#include "rsocket-core/net/address.h"
#include "rsocket-core/protocol/reason.h"

namespace ringroad {

// kNone when the libraries can be called; touches only the file system.
Reason check_host() noexcept;

// What errno means after a failure to make an object: kMemlock, kNoMemory, kNoDescriptors or
// kQpError. `pins_memory`: the call registers memory, so ENOMEM is RLIMIT_MEMLOCK when it is finite.
Reason reason_of_errno(int error, bool pins_memory) noexcept;

// One protection domain, freed with its last holder, and its device with the last domain.
class ProtectionDomain {
 public:
  ProtectionDomain(std::shared_ptr<ibv_context> device, ibv_pd* pd) noexcept
      : device_(std::move(device)), pd_(pd) {}
  ~ProtectionDomain() { ibv_dealloc_pd(pd_); }
  ProtectionDomain(const ProtectionDomain&) = delete;
  ProtectionDomain& operator=(const ProtectionDomain&) = delete;
  ibv_pd* get() const noexcept { return pd_; }

 private:
  const std::shared_ptr<ibv_context> device_;
  ibv_pd* const pd_;
};

// One domain a device and peer address, so that no rkey of one peer's rings is good on another
// peer's queue pair. Thread rule: any thread.
class ProtectionDomains {
 public:
  // Null with errno when there is none to be had.
  std::shared_ptr<ProtectionDomain> get(const std::shared_ptr<ibv_context>& device,
                                        const Address& peer) noexcept
      RR_EXCLUDES(mutex_);

 private:
  using Key = std::pair<ibv_context*, Address>;
  Mutex mutex_ RR_RANK(protection_domains);
  std::map<Key, std::weak_ptr<ProtectionDomain>> domains_ RR_GUARDED_BY(mutex_);
};

}  // namespace ringroad
