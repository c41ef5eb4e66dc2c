// One stream that the program has put into an epoll instance, under one number. An EpollSet's own.
#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <boost/intrusive/list.hpp>
#include <cstdint>

#include "rsocket-core/base/hints.h"
#include "rsocket-core/stream/stream.h"
#include "rsocket-core/stream/waiter.h"

namespace ringroad {

class EpollSet;

// epoll's and poll's bits are the same; poll's are 15.
inline short poll_bits(std::uint32_t mask) noexcept { return static_cast<short>(mask & 0x7fff); }

// What a look touches where there is nothing to weigh is one line, what it has to compare with else the next.
struct EpollItem final : Waiter, boost::intrusive::list_base_hook<boost::intrusive::tag<EpollItem>> {
  // kernel_fd: not there; or there under a number that the program has closed, or that names another file by
  // now. Nobody can change such an entry or take it out.
  static constexpr int kNone = -1;
  static constexpr int kUnnamed = -2;
  using QueueHook =
      boost::intrusive::list_member_hook<boost::intrusive::link_mode<boost::intrusive::normal_link>>;

  EpollSet* set = nullptr;
  std::uint64_t key = 0;

  alignas(kLineBytes) QueueHook in_queue;
  Stream* stream = nullptr;   // held by `holds`
  std::uint64_t told_in = 0;  // the wait that it was last reported to
  epoll_data_t data{};
  std::uint32_t mask = 0;
  std::uint32_t kernel_bits = 0;  // what the inner instance said of the TCP socket
  int kernel_fd = kNone;          // in the inner instance
  bool queued = false;            // in the set's queue
  bool disabled = false;          // EPOLLONESHOT has fired
  bool fresh = false;             // added, modified: report whatever is ready
  bool kernel_pending = false;    // this look has put it into the inner instance, which is yet to be asked
  bool tell_all = false;          // fresh at the last look, before the kernel was asked
  bool repeats = false;           // the inner instance is yet to say what holds, which is nothing new
  bool told_room = false;         // since it was fresh
  bool arrived = false;           // bytes, of which the kernel was not asked in time: the carrier changed
  bool owes_room = false;         // room to send, for which the carrier changed just then
  bool keeps = false;             // EPOLLEXCLUSIVE: what is there is this one's to tell
  bool put_off = false;           // its channel is not armed, and had nothing new at the last look
  bool lent = false;              // the kernel has it, unless it is disabled

  // What was known at the last look: an edge is a difference.
  alignas(kLineBytes) std::uint64_t seen_arrivals = 0;
  std::uint64_t seen_tcp_arrivals = 0;
  std::uint64_t seen_blocked = 0;
  std::uint64_t seen_shutdowns = 0;
  std::uint64_t seen_frames = 0;
  std::uint64_t channel_generation = 0;
  int channel_fd = -1;            // in the inner instance
  std::uint32_t kernel_mask = 0;  // what kernel_fd is there for
  short seen_ends = 0;
  bool awaits_room = false;  // at the last look there was none

  // In which round of looks kernel_bits was said; since then the program may have done something about it.
  alignas(kLineBytes) std::uint64_t kernel_bits_of = 0;
  std::uint64_t blocked_at_look = 0;  // PollPlan::blocked, where it was put off
  StreamPtr holds;
  int fd = -1;         // the program's number
  int own_fd = -1;     // what the inner instance knows it by, if the stream's number is another item's
  bool dirty = false;  // on the set's list of news, and guarded by that one's lock

  bool edge_triggered() const noexcept { return (mask & EPOLLET) != 0; }
  // Level-triggered, and nothing of before is to be told or asked.
  bool is_plain() const noexcept {
    constexpr std::uint32_t kOther = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE;
    return (mask & kOther) == 0 && kernel_bits == 0 && kernel_fd == kNone &&
           !(disabled | fresh | tell_all | arrived | owes_room);
  }
  // The kernel is asked about the TCP socket by the next look, whatever it has said.
  void ask_again() noexcept { kernel_bits_of = 0; }
};

}  // namespace ringroad
