#include "policy/settings.h"

namespace ringroad::policy {

std::string_view to_string(Via via) noexcept {
  switch (via) {
    case Via::kTcp:
      return "tcp";
    case Via::kRdma:
      return "rdma";
    case Via::kShm:
      return "shm";
    case Via::kAuto:
      return "auto";
  }
  return "";
}

}  // namespace ringroad::policy
