#include "rsocket-core/channel/verbs/open_devices.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/channel/verbs/device.h"

namespace ringroad {
namespace {

constexpr const char* kNodes = "/dev/infiniband";

bool watch(int epoll_fd, int fd) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return sys::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

OpenDevices::~OpenDevices() {
  if (nodes_fd_ < 0) return;
  host_.release_fd(nodes_fd_);
  sys::close_quietly(nodes_fd_);
}

// Without inotify, whose instances are few, identifiers alone tell of a removal.
void OpenDevices::watch_nodes() noexcept {
  if (nodes_fd_ >= 0) return;
  const int saved = errno;
  nodes_fd_ = static_cast<int>(sys::call(SYS_inotify_init1, IN_NONBLOCK | IN_CLOEXEC));
  if (nodes_fd_ >= 0) nodes_fd_ = host_.adopt_fd(nodes_fd_);
  if (nodes_fd_ >= 0) {
    sys::call(SYS_inotify_add_watch, nodes_fd_, kNodes, IN_DELETE);
    watch(epoll_fd_, nodes_fd_);
  }
  errno = saved;
}

std::vector<OpenDevices::Device>::iterator OpenDevices::find(const ibv_context* librarys) noexcept {
  return std::find_if(devices_.begin(), devices_.end(),
                      [&](const Device& device) { return device.librarys == librarys; });
}

// Whether librdmacm has the context that it had then, and has it there.
bool OpenDevices::is_librarys(const Device& device) const noexcept {
  struct stat file {};
  return sys::call(SYS_fstat, device.command_fd, &file) == 0 &&
         file.st_dev == device.filesystem && file.st_ino == device.inode;
}

Reason OpenDevices::know(ibv_context* librarys) noexcept {
  if (librarys == nullptr) return Reason::kNone;
  if (const auto known = find(librarys); known != devices_.end()) {
    if (librarys->cmd_fd == known->command_fd && is_librarys(*known)) return Reason::kNone;
    // Another one, which stands where librdmacm has freed that; it could not close these (preload's close).
    if (is_librarys(*known)) {
      for (const int fd : {known->command_fd, known->events_fd}) {
        host_.release_fd(fd);
        sys::close_quietly(fd);
      }
    }
    devices_.erase(known);
  }
  watch_nodes();
  try {
    Device& device = devices_.emplace_back();
    device.librarys = librarys;
    device.command_fd = librarys->cmd_fd = host_.share_fd(librarys->cmd_fd);
    device.events_fd = librarys->async_fd = host_.share_fd(librarys->async_fd);
    std::memcpy(device.node, librarys->device->dev_name, sizeof device.node);
    struct stat file {};
    if (sys::call(SYS_fstat, device.command_fd, &file) == 0) {
      device.filesystem = file.st_dev;
      device.inode = file.st_ino;
    }
    return Reason::kNone;
  } catch (const std::bad_alloc&) {
    return Reason::kNoMemory;
  }
}

Reason OpenDevices::own(ibv_context* librarys, std::shared_ptr<ibv_context>& out) noexcept {
  if (const Reason why = know(librarys); why != Reason::kNone) return why;
  const auto device = find(librarys);
  if (device == devices_.end()) return Reason::kNoRdmaDevice;
  if (device->own == nullptr) {
    if (const Reason why = open_own(librarys, device->own); why != Reason::kNone) return why;
  }
  out = device->own;
  return Reason::kNone;
}

Reason OpenDevices::open_own(const ibv_context* librarys,
                             std::shared_ptr<ibv_context>& out) noexcept {
  ibv_context* const opened = ibv_open_device(librarys->device);
  if (opened == nullptr) return reason_of_errno(errno, false);
  opened->cmd_fd = host_.adopt_fd(opened->cmd_fd);
  opened->async_fd = host_.adopt_fd(opened->async_fd);
  const auto close = [host = host_](ibv_context* closed) {
    host.release_fd(closed->cmd_fd);
    host.release_fd(closed->async_fd);
    ibv_close_device(closed);
  };
  std::shared_ptr<ibv_context> context;
  try {
    context.reset(opened, close);  // which it does, too, where there is no memory for it
  } catch (const std::bad_alloc&) {
    return Reason::kNoMemory;
  }
  const int flags = sys::fcntl(opened->async_fd, F_GETFL);
  if (opened->cmd_fd < 0 || flags < 0 || sys::fcntl(opened->async_fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
      !watch(epoll_fd_, opened->async_fd)) {
    return Reason::kNoDescriptors;
  }
  out = std::move(context);
  return Reason::kNone;
}

// Takes the device from librdmacm, which would keep it. Its calls fail from now on, as they do on a
// device that is gone: behind its descriptors stands something that takes neither ioctl nor write.
void OpenDevices::take_away(const Device& device) const noexcept {
  if (!is_librarys(device)) return;  // somebody else's by now
  const int saved = errno;
  if (const int deaf = sys::epoll_create1(EPOLL_CLOEXEC); deaf >= 0) {
    sys::call(SYS_dup3, deaf, device.command_fd, O_CLOEXEC);
    sys::call(SYS_dup3, deaf, device.events_fd, O_CLOEXEC);
    sys::close_quietly(deaf);
  }
  errno = saved;
}

std::shared_ptr<ibv_context> OpenDevices::leave(const ibv_context* context) noexcept {
  const auto device = std::find_if(devices_.begin(), devices_.end(), [&](const Device& known) {
    return known.librarys == context || known.own.get() == context;
  });
  return context == nullptr || device == devices_.end() ? nullptr : leave(device);
}

std::shared_ptr<ibv_context> OpenDevices::leave(std::vector<Device>::iterator device) noexcept {
  take_away(*device);
  std::shared_ptr<ibv_context> own = std::move(device->own);
  devices_.erase(device);
  return own;
}

// Where there were too many events for the kernel to keep, identifiers alone tell.
std::shared_ptr<ibv_context> OpenDevices::leave_removed(const inotify_event& event) noexcept {
  const auto device = std::find_if(devices_.begin(), devices_.end(), [&](const Device& known) {
    return event.len > 0 && std::strcmp(known.node, event.name) == 0;
  });
  return device == devices_.end() ? nullptr : leave(device);
}

}  // namespace ringroad
