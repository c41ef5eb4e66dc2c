// What an epoll instance tells of one stream: pure functions of what the program has asked for, of what the
// stream says now, of what the last look has seen, and of what the kernel says of the TCP socket.
//
// Level-triggered: all that holds, on either carrier.
//
//   events = plan.ready | kernel_bits
//
// Edge-triggered: all that holds, where something is new. An edge on one carrier tells what holds on the
// other.
//
//   has_edge  fresh  kernel_bits   told
//   --------  -----  -----------   ------------------------
//   no        no     0             nothing
//   no        no     some          plan.ready | kernel_bits
//   no        yes    any           plan.ready | kernel_bits
//   yes       any    any           plan.ready | kernel_bits
//
// A stream that changes its carrier (plan.frozen) has no room for a moment. A send waits for the end of
// that, or finds EAGAIN, and the end is an edge. So an edge-triggered item that asks for room is told of it
// meanwhile, as often as it is told anything, and where it is owed it, or fresh: but not before the kernel
// is asked, if it is to be (kernel_pending).
//
//   told otherwise  owes_room  fresh  kernel_pending   room is told
//   --------------  ---------  -----  --------------   ------------
//   yes             any        any    any              yes
//   no              yes        any    any              yes
//   no              no         yes    no               yes
//   no              no         yes    yes              no; tell_all has the next look owe it
//   no              no         no     any              no
#pragma once

#include <sys/epoll.h>

#include <cstdint>

#include "rsocket-core/stream/epoll_item.h"

namespace ringroad::epoll {

inline constexpr std::uint32_t kInput = EPOLLIN | EPOLLRDNORM;
// The kernel wakes the waiters that ask for any of these when bytes arrive (sock_def_readable).
inline constexpr std::uint32_t kArrival = EPOLLIN | EPOLLRDNORM | EPOLLPRI | EPOLLRDBAND;
inline constexpr std::uint32_t kOutput = EPOLLOUT | EPOLLWRNORM;

// The ends that a plan tells of. The peer's is known before it is reached.
short ends_of(const Stream::PollPlan& plan) noexcept;
// Has the stream, but for what is the kernel's to tell, anything that the last look had not?
bool has_edge(const EpollItem& item, const Stream::PollPlan& plan) noexcept;
// Whether there is something to tell whatever the kernel says: then it is asked, for all is told at once.
bool tells(const EpollItem& item, const Stream::PollPlan& plan) noexcept;
// Room is to come only when the carrier has changed, and an edge is to tell of it.
bool holds_room_back(const EpollItem& item, const Stream::PollPlan& plan) noexcept;
// What epoll_wait(2) is to tell; 0: nothing. `kernel_bits`: what the kernel says, as far as it is the
// stream's.
std::uint32_t evaluate(const EpollItem& item, const Stream::PollPlan& plan,
                       std::uint32_t kernel_bits) noexcept;
// The plan was looked at: what it says is no edge any more.
void note_seen(EpollItem& item, const Stream::PollPlan& plan) noexcept;

}  // namespace ringroad::epoll
