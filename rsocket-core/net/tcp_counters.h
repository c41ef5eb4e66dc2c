// What the kernel itself has counted on a TCP socket, to find out whether anything but this library
// has read or written it: io_uring, raw system calls, a forked child, stdio.
#pragma once

#include <cstdint>

namespace ringroad {

// The bytes written to and read from the connected socket `fd` by all that had it. `connected` says
// that this end called connect(), whose SYN the kernel counts as an acknowledged byte. False where
// the kernel does not tell (tcpi_bytes_acked and tcpi_bytes_received, tcp(7): Linux 4.1), or the
// peer does not pause for long enough to say. REQUIRES: this end has not shut its output.
bool tcp_counters(int fd, bool connected, std::uint64_t& written, std::uint64_t& read) noexcept;

// True when the kernel's counts of bytes written to and read from the connected socket `fd` are
// exactly these; where tcp_counters() would be false, false.
// REQUIRES: no thread that goes through the library sends or receives on `fd` during the call. The peer
// may be sending.
bool tcp_counters_are(int fd, bool connected, std::uint64_t written, std::uint64_t read) noexcept;

// Neither end has closed, shut down or reset the connection.
bool tcp_established(int fd) noexcept;

// Whether the peer has ended its output, or the connection is over.
bool tcp_peer_ended(int fd) noexcept;

// Whether the next `unread` bytes have all arrived, and so little of the receive buffer is taken
// that a frame behind them finds room in the window, whether or not the program reads.
bool tcp_has_room_behind(int fd, std::uint64_t unread) noexcept;

// Lets the receive buffer grow until it takes `bytes` unread at once, as the kernel itself lets it
// grow for a program that reads. Does nothing where the program has fixed the size (SO_RCVBUF), and
// no more than half of the system's limit (net.ipv4.tcp_rmem) can be had.
void tcp_make_room(int fd, std::uint64_t bytes) noexcept;

// Whether so much of the receive buffer is taken that the peer's kernel may be waiting for a
// reader.
bool tcp_is_half_full(int fd) noexcept;

}  // namespace ringroad
