// What stands behind a request to a control socket (control_socket.h): which process is meant. Another one
// does not obey, as its socket may have got that process' name in a directory that containers share. Older
// commands send none of this, and older libraries do not look at it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringroad::control {

inline constexpr std::uint32_t kTargetMagic = 0x47545252;  // "RRTG"

struct Target {
  std::uint32_t magic = kTargetMagic;
  char name[40] = {};  // of its statistics file (stats/file_name.h), as the process has made it
};
static_assert(sizeof(Target) == 44);

}  // namespace ringroad::control
