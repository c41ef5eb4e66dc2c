#include "cli/operator_request.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "cli/process_folder.h"
#include "cli/process_state.h"
#include "cli/segment_reader.h"
#include "cli/text.h"
#include "rsocket-core/process/control_target.h"

namespace ringroad::cli {
namespace {

constexpr timespec kLookAgain = {0, 1'000'000};

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

// The socket of a process, held so that what is sent to it goes nowhere else: in a container's directory
// its name may be a link that leads out of the container.
class OpenedSocket {
 public:
  OpenedSocket(const SegmentPlace& place, const std::string& name)
      : fd_(openat(place.folder->fd(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC)) {
    struct stat status;
    if (fd_ < 0 || fstat(fd_, &status) != 0) {
      problem_ = cannot_ask(errno);
    } else if (!S_ISSOCK(status.st_mode) || status.st_nlink > 1 || !may_be_of(place.pid, status.st_uid)) {
      problem_ = "what stands there is not its socket: " + place.folder->path() + "/" + name;
    }
  }
  ~OpenedSocket() {
    if (fd_ >= 0) close(fd_);
  }
  OpenedSocket(const OpenedSocket&) = delete;
  OpenedSocket& operator=(const OpenedSocket&) = delete;

  const std::string& problem() const noexcept { return problem_; }
  sockaddr_un address() const noexcept {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d", fd_);
    return address;
  }

 private:
  int fd_;
  std::string problem_;
};

// As whom root asks a process of another user namespace, in which root is nobody: as that process' user.
ucred asker_for(pid_t pid) {
  ucred asker{getpid(), getuid(), getgid()};
  const ProcessFolder process(pid);
  const std::uint64_t its = process.name_space("user");
  if (geteuid() != 0 || its == 0 || its == own_name_space("user")) return asker;
  const std::string status = process.text("status");
  const std::size_t users = status.find("\nUid:");
  unsigned effective;
  if (users != std::string::npos && std::sscanf(status.c_str() + users, "\nUid: %*u %u", &effective) == 1) {
    asker.uid = effective;
  }
  return asker;
}

// `target` goes along where it has its magic. False with errno.
bool send(const OpenedSocket& to, control::Request& request, control::Target& target, const ucred& asker) {
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_un address = to.address();
  iovec bytes[] = {{&request, sizeof request}, {&target, sizeof target}};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof asker)] = {};
  msghdr message{};
  message.msg_name = &address;
  message.msg_namelen = sizeof address;
  message.msg_iov = bytes;
  message.msg_iovlen = target.magic != 0 ? 2 : 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const credentials = CMSG_FIRSTHDR(&message);
  credentials->cmsg_level = SOL_SOCKET;
  credentials->cmsg_type = SCM_CREDENTIALS;
  credentials->cmsg_len = CMSG_LEN(sizeof asker);
  std::memcpy(CMSG_DATA(credentials), &asker, sizeof asker);
  const ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT);
  const int error = errno;
  close(fd);
  errno = error;
  return sent == static_cast<ssize_t>(sizeof request + (target.magic != 0 ? sizeof target : 0));
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

bool ask(const SegmentSource& source, pid_t pid, control::Mode mode, std::uint64_t serial,
         std::string& why) {
  ProcessReport process;
  const SegmentPlace place = place_of(source, pid);
  if (!read_segment(place, process, why)) return false;
  const std::string& suffix = process.control_suffix;
  const OpenedSocket opened(place, place.name + (suffix.empty() ? control::kSuffix : suffix));
  why = opened.problem();
  if (!why.empty()) return false;
  control::Request request;
  request.mode = static_cast<std::uint16_t>(mode);
  request.serial = serial;
  const auto own_pid = static_cast<std::uint32_t>(process.own_pid);
  control::Target target;
  static_assert(sizeof target.name == stats::FileName::kBytes);
  stats::FileName::of(own_pid, process.pid_namespace).write(target.name);
  // Version 0.1.0 obeys no longer request. A library that names its file so knows what is behind it.
  const char* end;
  if (stats::FileName::at(place.name.c_str(), end).pid_namespace == 0) target.magic = 0;
  if (send(opened, request, target, asker_for(pid))) return true;
  why = cannot_ask(errno);
  return false;
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

bool watch(const SegmentSource& source, pid_t pid, control::Mode mode, std::uint64_t serial,
           std::chrono::steady_clock::time_point until, ProcessReport& process, Progress& progress,
           std::string& why) {
  const SegmentPlace place = place_of(source, pid);
  for (;;) {
    process = ProcessReport{};
    if (!read_segment(place, process, why)) return false;
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
