// Runs a program with chosen environment, and keeps what it said: for tests of the preloaded library.
//
// Thread rule: none of it is shared between threads. Failures to start are reported by ok().
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace ringroad::test {

// Removed with everything in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& text) const;  // the file's path

 private:
  std::string path_;
};

// One program under way: its standard input is a pipe that this object holds open.
class Program {
 public:
  Program(const std::vector<std::string>& argv, const std::vector<std::string>& environment);
  ~Program();  // kills what still runs
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  bool ok() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }
  // Until standard output holds `text`. False: it ended, or `timeout_ms` is over.
  // `from`: of what it has written by then.
  bool wait_for(const std::string& text, int timeout_ms, std::size_t from = 0);
  void write(const std::string& text);
  // Ends its standard input and waits. The exit status; 128 + number for a signal, -1 after a time-out.
  int finish(int timeout_ms);
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  bool take_in(int timeout_ms);

  pid_t pid_ = -1;
  int in_ = -1;
  int fds_[2] = {-1, -1};
  std::string out_;
  std::string err_;
};

// What the library needs: promoted from the first byte, or after some messages. Over shm on
// loopback, unless RINGROAD_TEST_ADDRESS, _SUBNET, _VIA and _WAIT (as a policy has them) say
// otherwise. Connections with 127.0.0.99 are left alone.
std::string policy_from_the_first_byte();
std::string policy_after_messages(unsigned count);

// The environment of this process with `changes` ("NAME=value"), and of RINGROAD_* only RINGROAD_TEST_*.
std::vector<std::string> environment_with(const std::vector<std::string>& changes);

// Lines that differ, as diff(1) shows them.
std::string difference(const std::string& expected, const std::string& actual);

}  // namespace ringroad::test
