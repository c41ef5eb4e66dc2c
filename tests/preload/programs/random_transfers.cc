// How a Player sends and receives.
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "tests/preload/programs/random_player.h"

namespace ringroad::test {

namespace {

// Up to four pieces of `n` bytes at `base`.
struct Pieces {
  iovec iov[4];
  int count = 0;
};
Pieces cut(char* base, std::size_t n, int count) {
  Pieces out;
  const std::size_t each = n / static_cast<std::size_t>(count);
  for (int i = 0; i < count; ++i) {
    const std::size_t take = i + 1 == count ? n : each;
    out.iov[out.count++] = {base, take};
    base += take;
    n -= take;
  }
  return out;
}

}  // namespace

void Player::send(Connection& c) {
  // Left out: an end that is open and shut down both ways. The kernel's reset does not come.
  const End& peer = c.ends[1 - turn_];
  if (peer.alive() && peer.shut_rd && peer.shut_wr) {
    receive(c.ends[turn_]);
    return;
  }
  const int room = kMostUnread - static_cast<int>(c.ends[1 - turn_].unread);
  const int n = std::min(size(), std::max(room - 32, 0));
  const int way = draw_.below(6);
  const int pieces = 1 + draw_.below(4);
  const int offset = draw_.below(static_cast<int>(kFileBytes) / 2);
  const bool by_position = draw_.one_in(2);
  int flags = static_cast<int>(draw_.subset({MSG_DONTWAIT, MSG_NOSIGNAL}));
  // Bytes that are held back meet no reset.
  if (draw_.one_in(6) && peer.alive()) flags |= MSG_MORE;
  // What MSG_MORE holds back is on its way with the next.
  const int more = way != 0 && way != 2 && way != 4 && (flags & MSG_MORE) != 0 ? 1 + draw_.below(20) : 0;
  const long sent = turn([&] {
    long total = send_once(way, flags, n, pieces, offset, by_position);
    if (more > 0 && total >= 0) {
      const long rest = send_once(1, 0, more, 1, 0, false);
      if (rest > 0) total += rest;
    }
    return total;
  });
  if (sent > 0) c.sent(turn_, static_cast<std::size_t>(sent));
}

long Player::send_once(int way, int flags, int count, int pieces, int offset, bool by_position) {
  const auto n = static_cast<std::size_t>(count);
  const int at = fd();
  std::string bytes = patterned(static_cast<std::uint64_t>(number_) * 131, n);
  Pieces cut_up = cut(bytes.data(), n, pieces);
  std::string call;
  long value = -1;
  const auto once = [&] {
    errno = 0;
    switch (way) {
      case 0:
        call = "write(";
        return value = ::write(at, bytes.data(), n);
      case 1:
        call = "send(";
        return value = ::send(at, bytes.data(), n, flags);
      case 2:
        call = "writev(" + std::to_string(pieces) + " of ";
        return value = ::writev(at, cut_up.iov, cut_up.count);
      case 3: {
        call = "sendmsg(" + std::to_string(pieces) + " of ";
        msghdr message{};
        message.msg_iov = cut_up.iov;
        message.msg_iovlen = static_cast<std::size_t>(cut_up.count);
        return value = ::sendmsg(at, &message, flags);
      }
      case 4: {
        off_t from = offset;
        if (!by_position) {
          call = "sendfile(from " + std::to_string(offset) + ", ";
          return value = ::sendfile(at, file_, &from, n);
        }
        ::lseek(file_, offset, SEEK_SET);
        value = ::sendfile(at, file_, nullptr, n);
        const int saved = errno;
        call = "sendfile(at " + std::to_string(::lseek(file_, 0, SEEK_CUR)) + ", ";
        errno = saved;
        return value;
      }
      default:
        call = "sendto(";
        return value = ::sendto(at, bytes.data(), n, flags, nullptr, 0);
    }
  };
  const bool flagged = way != 0 && way != 2 && way != 4;
  once();
  if (switching_ && value == -1 && errno == EAGAIN) {
    until([&] { return once() != -1 || errno != EAGAIN; });
  }
  say(call + std::to_string(n) + (flagged ? flag_names(flags) : "") + ") = " + answer(value));
  return value;
}

void Player::receive(End& end) {
  int n = size();
  const int way = draw_.below(5);
  const int pieces = 1 + draw_.below(4);
  const bool flagged = way < 3;
  int flags = 0;
  if (draw_.one_in(2)) flags |= MSG_DONTWAIT;
  if (draw_.one_in(4)) flags |= MSG_PEEK;
  if (draw_.one_in(5)) flags |= MSG_WAITALL;
  if (draw_.one_in(8)) flags |= MSG_TRUNC;
  // PEEK with WAITALL takes the stream off its channel.
  const bool rarely = draw_.one_in(60) && switching_;
  if ((flags & MSG_PEEK) != 0 && !rarely) flags &= ~MSG_WAITALL;
  if (!flagged) flags = 0;
  // Never for ever.
  const bool waits = !end.nonblocking && (flags & MSG_DONTWAIT) == 0;
  if (waits && !end.ready()) flags |= MSG_DONTWAIT;
  if (waits && static_cast<std::size_t>(n) > end.unread && !end.ends()) flags &= ~MSG_WAITALL;
  if (!fills_past_a_reset_ && end.reset && static_cast<std::size_t>(n) > end.unread) flags &= ~MSG_WAITALL;
  const bool must_flag = flags != 0;
  const long got = turn([&] { return receive_once(must_flag && !flagged ? 0 : way, flags, n, pieces); });
  if (got > 0 && (flags & MSG_PEEK) == 0) end.unread -= static_cast<std::size_t>(got);
}

long Player::receive_once(int way, int flags, int count, int pieces) {
  const auto n = static_cast<std::size_t>(count);
  std::string bytes(n + 1, '-');
  Pieces cut_up = cut(bytes.data(), n, pieces);
  std::string call;
  std::string more;
  long value;
  errno = 0;
  switch (way) {
    case 0:
      call = "recv(";
      value = ::recv(fd(), bytes.data(), n, flags);
      break;
    case 1: {
      call = "recvmsg(" + std::to_string(pieces) + " of ";
      msghdr message{};
      message.msg_iov = cut_up.iov;
      message.msg_iovlen = static_cast<std::size_t>(cut_up.count);
      value = ::recvmsg(fd(), &message, flags);
      if (value >= 0) more = " flags " + std::to_string(message.msg_flags);
      break;
    }
    case 2:
      call = "recvfrom(";
      value = ::recvfrom(fd(), bytes.data(), n, flags, nullptr, nullptr);
      break;
    case 3:
      call = "read(";
      value = ::read(fd(), bytes.data(), n);
      break;
    default:
      call = "readv(" + std::to_string(pieces) + " of ";
      value = ::readv(fd(), cut_up.iov, cut_up.count);
      break;
  }
  std::string shown = answer(value);
  if (value >= 0) {
    const std::size_t length = std::min(static_cast<std::size_t>(value), n);
    shown += more + " " + quoted(std::string_view(bytes.data(), length));
  }
  say(call + std::to_string(n) + flag_names(flags) + ") = " + shown);
  return value;
}

}  // namespace ringroad::test
