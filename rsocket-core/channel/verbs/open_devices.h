// The devices that this process has open, each twice: as librdmacm does, which opens a device with the
// first identifier on it and never closes it while there is no other, and as its own. Queue pairs are
// made on its own one: forked children inherit what librdmacm has opened, so queue pairs that parent and
// child made there would be one's as much as the other's, and so would be the news of them.
//
// A device that is taken away (`rdma link delete`, a hot-unplugged card) goes when nobody has it open any
// more, unless its driver can take it from its users; so it is closed here as soon as that is known: its own
// context with its last channel, librdmacm's at once, by putting something else behind its descriptors.
// Known it is from an event of an identifier on it, or from the end of its node in /dev/infiniband,
// whichever the kernel comes to first.
//
// Thread rule: one thread, but contexts are let go on any.
#pragma once

#include <infiniband/verbs.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <memory>
#include <vector>

#include "rsocket-core/base/sys.h"
#include "rsocket-core/channel/transport.h"
#include "rsocket-core/protocol/reason.h"

namespace ringroad {

class OpenDevices {
 public:
  // `epoll_fd` is to tell of the devices' events.
  OpenDevices(const VerbsHost& host, int epoll_fd) noexcept : host_(host), epoll_fd_(epoll_fd) {}
  ~OpenDevices();
  OpenDevices(const OpenDevices&) = delete;
  OpenDevices& operator=(const OpenDevices&) = delete;

  // Moves the descriptors of a context that librdmacm has opened away from the program's; null has none.
  Reason know(ibv_context* librarys) noexcept;
  // The process' own context of that device; with it go its asynchronous events.
  Reason own(ibv_context* librarys, std::shared_ptr<ibv_context>& out) noexcept;
  // Lets go of a device that is being taken away; `context` is either of its two. Returns its own one, or
  // null if there is none (any more).
  std::shared_ptr<ibv_context> leave(const ibv_context* context) noexcept;
  // The same for all whose nodes have gone; calls `left` with each one's own context, if it has one.
  template <typename Left>
  void leave_removed(Left left) noexcept;

  // Calls `take` with each open context of its own; what comes and goes meanwhile may be left out.
  template <typename Take>
  void each(Take take) const noexcept {
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      if (const std::shared_ptr<ibv_context> own = devices_[i].own; own != nullptr) take(own.get());
    }
  }

 private:
  struct Device {
    ibv_context* librarys = nullptr;  // not to be followed: librdmacm may have freed it
    int command_fd = -1;              // its two descriptors
    int events_fd = -1;
    dev_t filesystem = 0;  // what command_fd stands for
    ino_t inode = 0;
    char node[sizeof(ibv_device::dev_name)] = {};  // uverbs0
    std::shared_ptr<ibv_context> own;
  };

  void watch_nodes() noexcept;
  std::vector<Device>::iterator find(const ibv_context* librarys) noexcept;
  bool is_librarys(const Device& device) const noexcept;
  void take_away(const Device& device) const noexcept;
  Reason open_own(const ibv_context* librarys, std::shared_ptr<ibv_context>& out) noexcept;
  std::shared_ptr<ibv_context> leave(std::vector<Device>::iterator device) noexcept;
  std::shared_ptr<ibv_context> leave_removed(const inotify_event& event) noexcept;

  const VerbsHost host_;
  const int epoll_fd_;
  std::vector<Device> devices_;
  int nodes_fd_ = -1;  // inotify; -1: none to be had, and identifiers alone tell
};

template <typename Left>
void OpenDevices::leave_removed(Left left) noexcept {
  const int saved = errno;
  alignas(inotify_event) char events[1024];
  ssize_t n = 0;
  while (nodes_fd_ >= 0 && (n = sys::read(nodes_fd_, events, sizeof events)) > 0) {
    for (ssize_t at = 0; at < n;) {
      const auto* event = reinterpret_cast<const inotify_event*>(events + at);
      at += static_cast<ssize_t>(sizeof *event + event->len);
      if (const auto own = leave_removed(*event); own != nullptr) left(own.get());
    }
  }
  errno = saved;
}

}  // namespace ringroad
