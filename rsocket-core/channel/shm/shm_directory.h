// The rendezvous directory: path sockets by which listeners answer to connectors of other network namespaces.
//
// A container mounts the directory, and its programs name it (RINGROAD_RENDEZVOUS_DIR). "10.0.0.2:3306" there
// stands for that address and port; "process-0123..ef" for one process of a group. The directory's
// permissions say which users may ask and answer. Nothing is believed because of them: both ends prove a key
// (protocol/proof.h).
//
// Thread rule: the agent thread's; no state. Errors: no call throws; errno is unspecified after one.
#pragma once

#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rsocket-core/channel/transport.h"
#include "rsocket-core/net/endpoint.h"
#include "rsocket-core/protocol/reason.h"

namespace ringroad::shm_directory {

// The path in `directory` that stands for an abstract name (shm_hello.h). False: it is too long,
// or `directory` is not an absolute path.
bool path_of(const char* directory, const sockaddr_un& abstract_name, sockaddr_un& out) noexcept;

// Which file stands at a path. No other has the same while a socket is bound to it.
struct File {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;

  friend bool operator==(const File&, const File&) = default;
};

// Binds `fd` there, and lets each user that can reach the directory ask. What a dead process has left is
// replaced, once it is two seconds old. `file` gets what stands there then. kBusy: another process answers
// there, or may be about to; kOtherNamespace: the directory takes no socket.
Reason bind(int fd, const sockaddr_un& path, File& file) noexcept;
bool stands_there(const sockaddr_un& path, const File& file) noexcept;
// Takes the path away, if it is still that file.
void remove(const sockaddr_un& path, const File& file) noexcept;
// The same after a look, by which it was that file. True: it was, and is gone.
//
// Another process may put its own there at any moment, and no call unlinks "this file, if it is still there".
// So the path first gets a name that nobody else knows, in one step, and only what is found under that is
// unlinked. If another process' path came along, it goes back, also in one step. If a third process took the
// place meanwhile, two had it in turn, and the first finds at its next look that its path has gone. A process
// that is killed between the steps leaves a name that remove_dead() knows.
bool take_away(const sockaddr_un& path, const File& file) noexcept;
// Connects `fd` to the socket there, never through a symbolic link. 0, or an errno; ECONNREFUSED also where
// there is none, or none that this user may use.
int connect(int fd, const sockaddr_un& path) noexcept;
// Removes up to `most` sockets of dead processes of groups. Only those that this user may remove go.
void remove_dead(const char* directory, unsigned most) noexcept;

// The endpoints at which connectors of other network namespaces reach a listener that is bound to `local`:
// itself, or one for each address of the calling thread's namespace. Neither loopback nor link-local ones,
// nor one that the namespace does not have. A listener of another namespace is reached at the address that
// it is bound to, if that is one. False: the kernel has not told. May throw std::bad_alloc.
bool reached_at(const Endpoint& local, const ListenerFacts& facts, std::vector<Endpoint>& out);

}  // namespace ringroad::shm_directory
