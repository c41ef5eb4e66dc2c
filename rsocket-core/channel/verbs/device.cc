#include "rsocket-core/channel/verbs/device.h"

#include <dirent.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "rsocket-core/base/sys.h"

namespace ringroad {
namespace {

constexpr const char* kDevices = "/sys/class/infiniband";
constexpr const char* kVerbsAbi = "/sys/class/infiniband_verbs/abi_version";
constexpr const char* kNodes = "/dev/infiniband";
constexpr const char* kConnectionManager = "/dev/infiniband/rdma_cm";
constexpr const char* kProviders = "/etc/libibverbs.d";
// libibverbs knows the kernel's verbs ABI 3 to 6 (libibverbs/ibverbs.h, unchanged since 2005).
constexpr int kMinVerbsAbi = 3;
constexpr int kMaxVerbsAbi = 6;
// At or below it check_memlock_limit() of libibverbs warns.
constexpr rlim_t kWarnedMemlock = 32768;

bool accessible(const char* path) noexcept { return access(path, R_OK | W_OK) == 0; }

// A name in the folder that starts with `prefix`, and for nodes may be opened.
bool holds(const char* folder, const char* prefix, bool open_for_writing) noexcept {
  DIR* dir = opendir(folder);
  if (dir == nullptr) return false;
  bool found = false;
  while (const dirent* entry = found ? nullptr : readdir(dir)) {
    if (entry->d_name[0] == '.' || std::strncmp(entry->d_name, prefix, std::strlen(prefix)) != 0) {
      continue;
    }
    found = !open_for_writing || faccessat(dirfd(dir), entry->d_name, R_OK | W_OK, 0) == 0;
  }
  closedir(dir);
  return found;
}

bool verbs_abi_known() noexcept {
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, kVerbsAbi, O_RDONLY | O_CLOEXEC));
  if (fd < 0) return false;
  char text[16] = {};
  const ssize_t n = sys::read(fd, text, sizeof text - 1);
  sys::close_quietly(fd);
  const int abi = n > 0 ? std::atoi(text) : 0;
  return abi >= kMinVerbsAbi && abi <= kMaxVerbsAbi;
}

}  // namespace

Reason check_host() noexcept {
  if (!holds(kDevices, "", false) || !accessible(kConnectionManager) ||
      !holds(kNodes, "uverbs", true) || !verbs_abi_known() || !holds(kProviders, "", false)) {
    return Reason::kNoRdmaDevice;
  }
  rlimit limit{};
  if (geteuid() != 0 &&
      (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur <= kWarnedMemlock)) {
    return Reason::kMemlock;
  }
  return Reason::kNone;
}

Reason reason_of_errno(int error, bool pins_memory) noexcept {
  switch (error) {
    case ENOMEM: {
      rlimit limit{};
      const bool limited = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
      return pins_memory && limited ? Reason::kMemlock : Reason::kNoMemory;
    }
    case EMFILE:
    case ENFILE:
      return Reason::kNoDescriptors;
    case ENODEV:
    case ENOENT:
    case ENXIO:
    case EACCES:
    case EADDRNOTAVAIL:
    case ENETUNREACH:
    case EHOSTUNREACH:
    case EAFNOSUPPORT:
      return Reason::kNoRdmaDevice;
    case EADDRINUSE:
      return Reason::kBusy;
    case ETIMEDOUT:
      return Reason::kTimeout;
    default:
      return Reason::kQpError;
  }
}

std::shared_ptr<ProtectionDomain> ProtectionDomains::get(
    const std::shared_ptr<ibv_context>& device,
    const Address& peer) noexcept {
  MutexLock lock(mutex_);
  try {
    std::erase_if(domains_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<ProtectionDomain>& known = domains_[{device.get(), peer}];
    if (auto domain = known.lock()) return domain;
    ibv_pd* pd = ibv_alloc_pd(device.get());
    if (pd == nullptr) return nullptr;
    std::unique_ptr<ProtectionDomain> owner(new (std::nothrow) ProtectionDomain(device, pd));
    if (owner == nullptr) {
      ibv_dealloc_pd(pd);
      errno = ENOMEM;
      return nullptr;
    }
    std::shared_ptr<ProtectionDomain> domain(std::move(owner));
    known = domain;
    return domain;
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return nullptr;
  }
}

}  // namespace ringroad
