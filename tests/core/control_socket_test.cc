// The socket where a process hears what its operator asks.
#include "rsocket-core/process/control_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "rsocket-core/process/control_target.h"
#include "tests/core/open_descriptors.h"

namespace ringroad::control {
namespace {

class Control : public testing::Test {
 protected:
  Control() {
    char name[] = "/tmp/ringroad-control-XXXXXX";
    directory_ = mkdtemp(name);
    std::filesystem::permissions(directory_, std::filesystem::perms::all);
    path_ = directory_ + "/1";
  }
  ~Control() override {
    if (socket_.fd() >= 0) close(socket_.fd());
    std::filesystem::remove_all(directory_);
  }

  sockaddr_un address() const {
    sockaddr_un out{};
    out.sun_family = AF_UNIX;
    std::strcpy(out.sun_path, (path_ + kSuffix).c_str());
    return out;
  }
  bool send(const void* bytes, std::size_t n) const {
    const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const sockaddr_un to = address();
    const bool sent = sendto(fd, bytes, n, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to) ==
                      static_cast<ssize_t>(n);
    close(fd);
    return sent;
  }
  bool send(const Request& request) const { return send(&request, sizeof request); }
  static Request request(Mode mode, std::uint64_t serial) {
    Request out;
    out.mode = static_cast<std::uint16_t>(mode);
    out.serial = serial;
    return out;
  }

  std::string directory_;
  std::string path_;
  ControlSocket socket_;
};

TEST_F(Control, HearsWhatIsAskedInOrder) {
  ASSERT_TRUE(socket_.open(path_.c_str()));
  EXPECT_FALSE(socket_.receive());
  ASSERT_TRUE(send(request(Mode::kTcp, 7)));
  ASSERT_TRUE(send(request(Mode::kRdma, 8)));
  const auto first = socket_.receive();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->mode, static_cast<std::uint16_t>(Mode::kTcp));
  EXPECT_EQ(first->serial, 7U);
  EXPECT_EQ(socket_.receive()->serial, 8U);
  EXPECT_FALSE(socket_.receive());
}

TEST_F(Control, DropsWhatIsNoRequestAndHearsTheNext) {
  ASSERT_TRUE(socket_.open(path_.c_str()));
  Request wrong = request(Mode::kTcp, 1);
  wrong.magic ^= 1;
  ASSERT_TRUE(send(wrong));
  wrong = request(Mode::kTcp, 1);
  wrong.version = 99;
  ASSERT_TRUE(send(wrong));
  wrong = request(Mode::kTcp, 1);
  wrong.mode = 3;
  ASSERT_TRUE(send(wrong));
  ASSERT_TRUE(send(request(Mode::kTcp, 0)));
  const Request right = request(Mode::kRdma, 5);
  ASSERT_TRUE(send(&right, sizeof right - 1));
  ASSERT_TRUE(send("", 0));
  ASSERT_TRUE(send(request(Mode::kAuto, 6)));
  const auto heard = socket_.receive();
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->serial, 6U);
}

TEST_F(Control, TakesOfALaterCommandWhatItKnows) {
  ASSERT_TRUE(socket_.open(path_.c_str()));
  const Request right = request(Mode::kRdma, 5);
  char longer[sizeof right + 8] = {};
  std::memset(longer, 0xff, sizeof longer);
  std::memcpy(longer, &right, sizeof right);
  ASSERT_TRUE(send(longer, sizeof longer));
  const auto heard = socket_.receive();
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->serial, 5U);
  EXPECT_EQ(heard->mode, static_cast<std::uint16_t>(Mode::kRdma));
}

TEST_F(Control, HearsNothingThatIsForAnotherProcess) {
  ASSERT_TRUE(socket_.open(path_.c_str()));
  struct {
    Request request;
    Target target;
  } asked;
  static_assert(sizeof asked == sizeof(Request) + sizeof(Target) + 4);
  const std::string own = path_.substr(path_.rfind('/') + 1);
  const auto ask = [&](const std::string& name, std::uint64_t serial) {
    asked.request = request(Mode::kTcp, serial);
    asked.target = {};
    std::strcpy(asked.target.name, name.c_str());
    return send(&asked, sizeof asked);
  };
  ASSERT_TRUE(ask(own + "-4026532179", 1));
  ASSERT_TRUE(ask(own.substr(0, own.size() - 1), 2));
  ASSERT_TRUE(ask("9" + own, 3));
  ASSERT_TRUE(ask("", 4));
  ASSERT_TRUE(ask(std::string(39, 'x'), 5));
  // Under whatever name it is found by now.
  const std::string other = directory_ + "/other";
  ASSERT_EQ(rename((path_ + kSuffix).c_str(), other.c_str()), 0);
  ASSERT_EQ(symlink(other.c_str(), (path_ + kSuffix).c_str()), 0);
  ASSERT_TRUE(ask(own, 6));
  const auto heard = socket_.receive();
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->serial, 6U);
  EXPECT_FALSE(socket_.receive());
}

TEST_F(Control, TakesNoDescriptors) {
  ASSERT_TRUE(socket_.open(path_.c_str()));
  Request asked = request(Mode::kTcp, 5);
  iovec bytes{&asked, sizeof asked};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  sockaddr_un to = address();
  message.msg_name = &to;
  message.msg_namelen = sizeof to;
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int gift = STDERR_FILENO;
  std::memcpy(CMSG_DATA(header), &gift, sizeof gift);
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(sendmsg(fd, &message, 0), static_cast<ssize_t>(sizeof asked));
  close(fd);
  const auto before = open_descriptors();
  EXPECT_TRUE(socket_.receive()) << "what it asks for is right all the same";
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(Control, TheFileIsItsOwnersAndReplacesADeadOne) {
  ASSERT_TRUE(socket_.open(path_.c_str()));
  close(socket_.fd());
  ASSERT_TRUE(socket_.open(path_.c_str()));
  struct stat status {};
  ASSERT_EQ(stat((path_ + kSuffix).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  ASSERT_TRUE(send(request(Mode::kTcp, 3)));
  EXPECT_TRUE(socket_.receive());
}

TEST_F(Control, AnotherUserIsNotHeardEvenWhereTheFileLetsHim) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  ASSERT_TRUE(socket_.open(path_.c_str()));
  ASSERT_EQ(chmod((path_ + kSuffix).c_str(), 0666), 0);
  const pid_t other = fork();
  if (other == 0) _exit(setuid(65534) == 0 && send(request(Mode::kTcp, 9)) ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(other, &status, 0), other);
  ASSERT_EQ(status, 0);
  EXPECT_FALSE(socket_.receive());
  ASSERT_TRUE(send(request(Mode::kTcp, 10)));
  EXPECT_EQ(socket_.receive()->serial, 10U);
}

// In a directory like /tmp nobody can remove what is another's.
TEST_F(Control, ANameThatAnotherUserHasTakenDoesNotKeepTheOperatorOut) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  ASSERT_EQ(chmod(directory_.c_str(), 01777), 0);
  std::ofstream(path_ + kSuffix) << "taken";
  const pid_t other = fork();
  if (other == 0) {
    const bool apart = setuid(65534) == 0 && !ControlSocket().open("/nowhere/at/all");
    ControlSocket socket;
    const bool opened = socket.open(path_.c_str()) && socket.suffix() != std::string(kSuffix) &&
                        std::string(socket.suffix()).starts_with(kSuffix);
    const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::strcpy(to.sun_path, (path_ + socket.suffix()).c_str());
    const Request asked = request(Mode::kTcp, 4);
    const bool heard =
        opened &&
        sendto(fd, &asked, sizeof asked, 0, reinterpret_cast<sockaddr*>(&to), sizeof to) ==
            static_cast<ssize_t>(sizeof asked) &&
        socket.receive()->serial == 4;
    _exit(apart && heard ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
}

TEST_F(Control, APathThatIsTooLongIsNoSocket) {
  EXPECT_FALSE(socket_.open(("/tmp/" + std::string(200, 'x')).c_str()));
  EXPECT_EQ(socket_.fd(), -1);
  EXPECT_FALSE(socket_.open("/nowhere/at/all"));
}

}  // namespace
}  // namespace ringroad::control
