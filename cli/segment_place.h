// Where the statistics file of a process is: in the runtime directory as that process sees it, which in a
// container is another than this command's.
//
// A file counts for a process only in the directory that this process itself uses, reached by its own root,
// so that no container speaks for another's processes. Nothing of a container's makes this command follow a
// link out of that root.
//
// Thread rule: one thread. Errors are values; std::bad_alloc may be thrown.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/container_name.h"
#include "cli/process_folder.h"
#include "rsocket-core/stats/file_name.h"

namespace ringroad::cli {

// Which files a command looks at.
struct SegmentSource {
  SegmentSource() = default;
  SegmentSource(std::string named) : directory(std::move(named)) {}
  SegmentSource(const char* named) : directory(named) {}

  std::string directory;
  bool and_containers = false;  // the directories of containers' processes, too
};

// A directory that is held open, only as a place.
class RuntimeFolder {
 public:
  RuntimeFolder(int fd, std::string path) noexcept;
  ~RuntimeFolder();
  RuntimeFolder(const RuntimeFolder&) = delete;
  RuntimeFolder& operator=(const RuntimeFolder&) = delete;

  bool is_there() const noexcept { return fd_ >= 0; }
  int fd() const noexcept { return fd_; }
  // For people.
  const std::string& path() const noexcept { return path_; }
  bool is(const RuntimeFolder& other) const noexcept {
    return is_there() && device_ == other.device_ && inode_ == other.inode_;
  }
  bool has(const std::string& name) const noexcept;

 private:
  int fd_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};
using RuntimeFolderPtr = std::shared_ptr<const RuntimeFolder>;

// As this command sees it. Never null.
RuntimeFolderPtr own_folder(const std::string& directory);

struct SegmentPlace {
  RuntimeFolderPtr folder;
  std::string name;  // in the folder
  pid_t pid = 0;     // as this command numbers the process; 0: it has ended
  // What the file has to say; a namespace of 0: this command's, or that of a file without one.
  stats::FileName says;
  std::uint64_t own_namespace = 0;  // this command's; 0: not known
  ContainerName container;          // empty: in this command's pid namespace

  bool exists() const noexcept { return folder->has(name); }
  std::string path() const { return folder->path() + "/" + name; }
  bool is_of_container() const noexcept {
    return says.pid_namespace != 0 && says.pid_namespace != own_namespace;
  }
};

// Of this one process; where it has no file: where it would be.
SegmentPlace place_of(const SegmentSource& source, pid_t pid);

// The files of processes in other pid or mount namespaces than this command's.
class ContainerSearch {
 public:
  using Key = std::pair<std::uint64_t, std::uint32_t>;  // a pid namespace, and a number in it

  // `known`: files in the source's own directory that are of other pid namespaces.
  ContainerSearch(const SegmentSource& source, RuntimeFolderPtr own, std::set<Key> known);
  // Each file that is there, while its directory is held open.
  using Act = std::function<void(const SegmentPlace&)>;
  void run(const Act& act);
  // Of one of `known` for which run() has found no process by its directory.
  enum class Known { kRuns, kEnded, kCannotTell };
  Known look_at(const Key& key, const std::string& name, SegmentPlace& place);

 private:
  struct Candidate {
    std::uint64_t mount_namespace;
    dev_t root_device;
    ino_t root_inode;
    pid_t pid;
    auto operator<=>(const Candidate&) const = default;
    bool has_root_of(const Candidate& other) const noexcept {
      return mount_namespace == other.mount_namespace && root_device == other.root_device &&
             root_inode == other.root_inode;
    }
  };
  using Folders = std::map<std::string, RuntimeFolderPtr>;  // by path, below one root

  std::vector<Candidate> candidates();
  void look_into(const Candidate& candidate, Folders& folders, const Act& act);

  const SegmentSource& source_;
  const RuntimeFolderPtr own_;
  const std::set<Key> known_;
  const std::uint64_t pid_namespace_ = own_name_space("pid");
  const std::uint64_t mount_namespace_ = own_name_space("mnt");
  bool hidden_ = false;  // some process may not be looked at
  ContainerNames names_;
  std::map<Key, pid_t> running_;
};

}  // namespace ringroad::cli
