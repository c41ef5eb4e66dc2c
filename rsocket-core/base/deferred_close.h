// Closing what a stranger had a hand in.
//
// close(2) can wait: for the data of a TCP socket that lingers, for the server of a FUSE file. A peer that
// sends descriptors over a Unix socket chooses what they are, and they are closed when they are
// taken and dropped, and also when the socket is closed with the message unread. So such closes
// happen on a thread that has nothing else to do, and sockets are closed in a way that does not wait. What
// remains is files whose close waits, as in FUSE. Verified memfds and eventfds need none of this.
//
// Thread rule: any thread. None of these waits, and errno is kept.
#pragma once

namespace ringroad {

// `fd` came from a peer and is not what it should be.
void close_foreign(int fd) noexcept;

// `socket` is our end of a connected Unix socket. The peer sees its end at once, also when a forked
// child holds a copy. If messages with descriptors are unread, its first recv(2) fails with ECONNRESET.
void close_foreign_socket(int socket) noexcept;

// For descriptors of the library's own making: closes what there is, and leaves -1.
void close_own(int& fd) noexcept;

// Such closes that have not ended. With kMaxForeignCloses of them, no more descriptors should be
// received for now.
inline constexpr int kMaxForeignCloses = 8;
int foreign_closes_under_way() noexcept;

}  // namespace ringroad
