#include "cli/operator_request.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "cli/segment_reader.h"
#include "cli/text.h"

namespace ringroad::cli {
namespace {

constexpr timespec kLookAgain = {0, 1'000'000};

std::string path_of(const std::string& directory, pid_t pid) {
  return directory + "/" + std::to_string(pid);
}

std::string cannot_ask(int error) {
  switch (error) {
    case ENOENT:
    case ECONNREFUSED:
      return "nobody listens there: it has had no connection or listener that its policy lets off "
             "TCP, or its socket could not be made, which its log says";
    case EACCES:
    case EPERM:
      return "it belongs to another user: ask as that user or as root";
    case EAGAIN:
      return "it does not take what it is asked: is it stopped?";
    default:
      return strerrordesc_np(error);
  }
}

// What the connecting end tries again.
bool passing(Reason reason) noexcept {
  switch (reason) {
    case Reason::kPending:
    case Reason::kBusy:
    case Reason::kTimeout:
    case Reason::kQpError:
    case Reason::kPeerGone:
    case Reason::kPeerGaveUp:
    case Reason::kPeerLeft:
    case Reason::kOperator:
      return true;
    default:
      return false;
  }
}

bool may_still_come(const StreamReport& stream) noexcept {
  return passing(stream.reason == Reason::kPeerRefused ? stream.peer_reason : stream.reason);
}

}  // namespace

bool ask(const std::string& directory, pid_t pid, control::Mode mode, std::uint64_t serial,
         std::string& why) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ProcessReport process;
  if (!read_segment(path_of(directory, pid), process, why)) return false;
  const std::string& suffix = process.control_suffix;
  const std::string path = path_of(directory, pid) + (suffix.empty() ? control::kSuffix : suffix);
  if (path.size() >= sizeof address.sun_path) {
    why = "the name of its socket is too long: " + path;
    return false;
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  control::Request request;
  request.mode = static_cast<std::uint16_t>(mode);
  request.serial = serial;
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    why = strerrordesc_np(errno);
    return false;
  }
  const ssize_t sent = sendto(fd, &request, sizeof request, MSG_DONTWAIT,
                              reinterpret_cast<const sockaddr*>(&address), sizeof address);
  if (sent != static_cast<ssize_t>(sizeof request)) why = cannot_ask(errno);
  close(fd);
  return sent == static_cast<ssize_t>(sizeof request);
}

std::string no_answer(const ProcessReport& process) {
  const std::string& theirs = process.library_version;
  return "it does not answer: is it stopped?" +
         (theirs == RINGROAD_VERSION ? ""
                                     : " It has ringroad " + printable(theirs) +
                                           " preloaded, and this command is ringroad " RINGROAD_VERSION);
}

Progress progress_of(const ProcessReport& process, control::Mode mode,
                     std::uint64_t serial) noexcept {
  Progress progress;
  progress.obeys = process.operator_serial == serial;
  if (!progress.obeys || mode == control::Mode::kAuto) return progress;
  for (const StreamReport& stream : process.streams) {
    switch (stream.state) {
      case State::kConnecting:
        // The kernel carries it.
        ++(mode == control::Mode::kTcp ? progress.there : progress.moving);
        break;
      case State::kSwitching:
      case State::kResuming:
        ++progress.moving;
        break;
      case State::kOnChannel:
        ++(mode == control::Mode::kRdma ? progress.there : progress.moving);
        break;
      case State::kOnTcp:
        if (mode == control::Mode::kTcp) {
          ++progress.there;
        } else if (may_still_come(stream)) {
          ++progress.waiting;
        } else {
          ++progress.staying;
        }
        break;
      default:
        break;  // over
    }
  }
  return progress;
}

bool watch(const std::string& directory, pid_t pid, control::Mode mode, std::uint64_t serial,
           std::chrono::steady_clock::time_point until, ProcessReport& process, Progress& progress,
           std::string& why) {
  for (;;) {
    process = ProcessReport{};
    if (!read_segment(path_of(directory, pid), process, why)) return false;
    progress = progress_of(process, mode, serial);
    if (!process.alive) {
      why = "it has ended";
      return false;
    }
    if (progress.over() || std::chrono::steady_clock::now() >= until) return true;
    nanosleep(&kLookAgain, nullptr);
  }
}

std::uint64_t new_serial() noexcept {
  const auto now =
      static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  const std::uint64_t serial = now ^ (static_cast<std::uint64_t>(getpid()) << 40);
  return std::max<std::uint64_t>(serial, 1);
}

}  // namespace ringroad::cli
