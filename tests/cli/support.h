// What the tests of the command share.
#pragma once

#include <elf.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rsocket-core/stats/stats.h"

namespace ringroad::cli {

// A folder that everybody may look into; removed with what is in it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const noexcept { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void write_file(const std::string& path, const std::string& content, mode_t mode = 0644);

// The segment of this very process, as the preloaded library makes it.
std::unique_ptr<stats::Segment> make_segment(const TempFolder& folder,
                                             const char* program = "mariadbd");
std::string own_segment(const TempFolder& folder);

// Gives the segment of this process to another one, and maybe changes more of its header.
void hand_over(const TempFolder& folder, pid_t pid,
               const std::function<void(stats::SegmentHeader&)>& change = {});

Endpoint endpoint(const char* address, std::uint16_t port);

// A slot that says it is a stream between these two addresses.
stats::StreamSlot* add_stream(stats::Segment& segment, std::uint64_t id, const char* local,
                              std::uint16_t local_port, const char* remote,
                              std::uint16_t remote_port);

// A child process that only waits; it ends with this object.
class Child {
 public:
  Child();
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const noexcept { return pid_; }

 private:
  pid_t pid_;
};

// A process number that no process has.
pid_t ended_pid();

struct Result {
  int status = -1;  // exit status, or -1 when a signal ended it
  std::string out;
  std::string err;
};

// Runs bin/ringroad with these arguments and these additions to the environment.
Result ringroad(const std::vector<std::string>& arguments,
                const std::vector<std::string>& environment = {});

// The begin of an ELF file of this machine, for a program with or without a dynamic loader.
std::string elf_file(bool has_interpreter, Elf64_Half type = ET_EXEC,
                     const std::function<void(Elf64_Ehdr&)>& change = {});

}  // namespace ringroad::cli
