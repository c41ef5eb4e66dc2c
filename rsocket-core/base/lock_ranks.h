// The order of the library's locks: a thread that holds a lock takes only locks of later ranks. clang checks
// that in every function (-Wthread-safety-beta).
//
// RR_RANK at its declaration gives a lock its rank. The check knows the locks that a function itself takes,
// and those of its RR_REQUIRES; it does not look into the functions that are called. So a function that takes
// a lock says so (RR_EXCLUDES) where its callers can name that lock. A thread has one lock of a rank at once.
//
// clang knows no rank of a lock that it meets only in RR_REQUIRES. Where a class has two locks, the first one
// therefore names the second, too (RR_ACQUIRED_BEFORE).
#pragma once

#include "rsocket-core/base/thread_annotations.h"

namespace ringroad::lock_ranks {

// Declared and never defined: a rank is only a name for the analysis.
struct RR_CAPABILITY("rank") Rank {};

// The rank `name`, directly behind the rank `outer`. A lock that has it stands between its two ends.
#define RR_LOCK_RANK(name, outer)                    \
  extern Rank name RR_ACQUIRED_AFTER(after_##outer); \
  extern Rank after_##name RR_ACQUIRED_AFTER(name);
#define RR_RANK(name)                             \
  RR_ACQUIRED_AFTER(::ringroad::lock_ranks::name) \
  RR_ACQUIRED_BEFORE(::ringroad::lock_ranks::after_##name)
// Of the constructor of a scoped object that is a lock of that rank in itself, or hides one.
#define RR_TAKES_RANK(name) RR_ACQUIRE(::ringroad::lock_ranks::name)

extern Rank after_outermost;
// preload, start_mutex: the library starts once. Below it: the whole start, and a fork that waits for it.
RR_LOCK_RANK(start, outermost)
// preload, giving_mutex: the library gives its descriptors back once. Below it: each stream returns to TCP.
RR_LOCK_RANK(room, start)
// preload, FdMutation: a number changes its meaning, in the kernel and here. Below it: what it named ends.
RR_LOCK_RANK(fd_mutation, room)
// preload, establish_mutex: one thread makes the stream of a connect(). Below it: a stream is made.
RR_LOCK_RANK(establish, fd_mutation)
// preload, inherit_mutex: one thread makes the stream that a child has inherited. Below it: a stream is made.
RR_LOCK_RANK(inherit, establish)
// preload, becoming: a deferred connection becomes a stream. Below it: a stream is made.
RR_LOCK_RANK(becoming, inherit)
// preload, making_mutex: an epoll instance has one set. Below it: the list of sets, the table, the set's own.
RR_LOCK_RANK(epoll_making, becoming)
// preload, sets_mutex: the list of sets. Below it: the lock of a set that ends.
RR_LOCK_RANK(epoll_list, epoll_making)
// preload, table_mutex: what each number names. Below it, before a fork: the agent's locks and the streams'.
RR_LOCK_RANK(fd_table, epoll_list)
// Agent::mutex_: whether the thread has started. Below it: the registries, the queue, the segment.
RR_LOCK_RANK(agent, fd_table)
// ListenerRegistry::mutex_: the listeners. Below it: the streams that they have accepted.
RR_LOCK_RANK(listeners, agent)
// StreamRegistry::mutex_: the streams. Below it: what a stream has that ends.
RR_LOCK_RANK(streams, listeners)
// process_stats.cc, making_mutex: the process makes its segment of statistics once. Below it: the segment's
// own lock.
RR_LOCK_RANK(segment_making, streams)
// EpollSet::mutex_: the streams of an epoll instance. Below it: the locks of those streams, and the news.
RR_LOCK_RANK(epoll_set, segment_making)
// Stream::tx_mutex_: the transmit side. Below it: the receive side, and all that may be taken below that.
RR_LOCK_RANK(stream_tx, epoll_set)
// Stream::rx_mutex_: the receive side. Below it: the waiters, the channel's locks, the agent's queue.
RR_LOCK_RANK(stream_rx, stream_tx)
// WaitList::mutex_: the threads and epoll instances that wait for a stream. Below it: an instance's news.
RR_LOCK_RANK(waiters, stream_rx)
// EpollSet::dirty_mutex_: the streams of an epoll instance that have news. Below it: nothing.
RR_LOCK_RANK(epoll_news, waiters)
// ChannelRegistry::mutex_: the RDMA channels that there are. Below it: the locks of one that the agent ends.
RR_LOCK_RANK(channel_registry, epoll_news)
// ProtectionDomains::mutex_: the protection domains of the devices. Below it: nothing.
RR_LOCK_RANK(protection_domains, channel_registry)
// VerbsChannel::receive_mutex_: the receive queue. Below it: the channel's two other locks.
RR_LOCK_RANK(channel_receive, protection_domains)
// VerbsChannel::send_mutex_: the send queue. Below it: nothing.
RR_LOCK_RANK(channel_send, channel_receive)
// control_mutex_ of a channel: the control messages that have arrived. Below it: nothing.
RR_LOCK_RANK(channel_control, channel_send)
// counting_mutex of unmanaged_waiters.cc: the threads that wait outside are counted once. Below it: nothing.
RR_LOCK_RANK(unmanaged_waiters, channel_control)
// Agent::queue_mutex_: the agent's commands, and its own descriptors. Below it: nothing.
RR_LOCK_RANK(agent_queue, unmanaged_waiters)
// stats::Segment::busy_: the slots of the statistics. Below it: nothing.
RR_LOCK_RANK(segment, agent_queue)
// sys::DescriptorTurn: one of the library's descriptors has a low number for a moment. Below it: nothing.
RR_LOCK_RANK(descriptor_turn, segment)
// preload, actions_mutex: the actions for SIGSEGV and SIGBUS, in the kernel and here. Below it: nothing.
RR_LOCK_RANK(signal_actions, descriptor_turn)

}  // namespace ringroad::lock_ranks
