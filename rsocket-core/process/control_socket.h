// What an operator asks of a running process (`ringroad set`), as one datagram to a Unix socket
// beside the process' statistics file:
//
//   <directory>/<name of that file>.control    0600, made by the agent thread
//
// The directory is everybody's. Where somebody else has taken that name, and thereby would keep the operator
// out, a part that cannot be guessed is added to it; which, the statistics file says (segment_layout.h,
// control_suffix).
//
//   0       4         6      8        16
//   | magic | version | mode | serial | the process that is meant (control_target.h) | ...
//
// `version` is the lowest that the process must know to understand it; fields are appended only, and a
// process takes those that it knows.
//
// with SCM_CREDENTIALS, which the kernel vouches for (unix(7)).
// Nobody is answered: the process writes what it has done into its statistics file (segment_layout.h:
// operator_mode, operator_serial), where the asker reads it, also of a process that is too busy to
// talk. Root and the user that the process runs as may ask.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace ringroad::control {

inline constexpr std::uint32_t kMagic = 0x54435252;  // "RRCT"
inline constexpr std::uint16_t kVersion = 1;
inline constexpr const char* kSuffix = ".control";
inline constexpr std::size_t kSuffixBytes = 32;  // at most, with what may be added and a NUL

// Append only: the values cross processes.
enum class Mode : std::uint16_t {
  kAuto = 0,  // as the policy says
  kTcp = 1,   // every stream on TCP
  kRdma = 2,  // what the policy lets off TCP is promoted at once, whatever the rule's threshold
};
inline constexpr Mode kLastMode = Mode::kRdma;

const char* mode_name(Mode mode) noexcept;  // auto, tcp, rdma; else "invalid"

struct Request {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t mode = 0;
  std::uint64_t serial = 0;  // chosen by the asker; not 0
};
static_assert(sizeof(Request) == 16);

// The process' end. Thread rule: one thread.
class ControlSocket {
 public:
  ControlSocket() noexcept = default;
  ~ControlSocket() = default;  // lives as long as the process, whose exit removes the file
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

  // `path`: of the statistics file. False where the socket cannot be made: nobody can ask then.
  bool open(const char* path) noexcept;
  // Its name stays.
  void close() noexcept;
  // What its name has behind that path; empty before open().
  const char* suffix() const noexcept { return suffix_; }
  int fd() const noexcept { return fd_; }
  // The next request that is one and from a process that may ask; what is not is dropped.
  std::optional<Request> receive() noexcept;

 private:
  bool open_as(const char* path, const char* suffix) noexcept;

  int fd_ = -1;
  char suffix_[kSuffixBytes] = {};
};

}  // namespace ringroad::control
