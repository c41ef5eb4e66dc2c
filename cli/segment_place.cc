#include "cli/segment_place.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "cli/rooted_file.h"
#include "rsocket-core/stats/segment_layout.h"

namespace ringroad::cli {
namespace {

std::string text_of_name(const stats::FileName& name) {
  char text[stats::FileName::kBytes];
  name.write(text);
  return text;
}

// `path` below the root of that process.
RuntimeFolderPtr folder_of(const ProcessFolder& process, const std::string& path) {
  const std::string root = "/proc/" + std::to_string(process.pid()) + "/root";
  int fd = path.starts_with('/') ? Root(root).open_folder(path) : -1;
  // Whose root was it, if the process has ended meanwhile?
  if (fd >= 0 && process.name_space("mnt") == 0) {
    close(fd);
    fd = -1;
  }
  return std::make_shared<const RuntimeFolder>(fd, root + path);
}

// In the order in which the process' file may be there. A program may have overwritten its environment to
// show a title: its directory may be one that others below that root name.
std::vector<std::string> paths_of(const std::string& environment, const std::string& own,
                                  const std::map<std::string, RuntimeFolderPtr>& others) {
  const std::string named = variable_of(environment, "RINGROAD_RUNTIME_DIR");
  if (!named.empty()) return {named};
  std::vector<std::string> paths = {stats::kDefaultDirectory, own};
  for (const auto& [path, folder] : others) paths.push_back(path);
  return paths;
}

// An older library wrote the number alone.
std::vector<stats::FileName> names_of(std::uint32_t pid, std::uint64_t pid_namespace) {
  const stats::FileName now = stats::FileName::of(pid, pid_namespace);
  if (now.pid_namespace == 0) return {now};
  return {now, {pid, 0}};
}

// The first of the process' files that is there, below its own root. `only`: in this directory alone.
bool find_place(const ProcessFolder& process, const std::string& environment, const std::string& own,
                std::map<std::string, RuntimeFolderPtr>& folders, const RuntimeFolder* only,
                SegmentPlace& place) {
  for (const std::string& path : paths_of(environment, own, folders)) {
    RuntimeFolderPtr& folder = folders[path];
    if (!folder) folder = folder_of(process, path);
    if (!place.folder) place.folder = folder;
    if (!folder->is_there() || (only != nullptr && !folder->is(*only))) continue;
    for (const stats::FileName& name : names_of(place.says.pid, place.says.pid_namespace)) {
      place.name = text_of_name(name);
      place.folder = folder;
      if (place.exists()) return true;
    }
  }
  return false;
}

// Whether a process has that file mapped.
bool maps_file(pid_t pid, ino_t inode, const std::string& name) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  const std::string number = " " + std::to_string(inode) + " ";
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with("/" + name) && line.find(number) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

RuntimeFolder::RuntimeFolder(int fd, std::string path) noexcept : fd_(fd), path_(std::move(path)) {
  struct stat status;
  if (fd_ < 0 || fstat(fd_, &status) != 0) return;
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

RuntimeFolder::~RuntimeFolder() {
  if (fd_ >= 0) close(fd_);
}

bool RuntimeFolder::has(const std::string& name) const noexcept {
  struct stat status;
  return is_there() && fstatat(fd_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

RuntimeFolderPtr own_folder(const std::string& directory) {
  const int fd = open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  return std::make_shared<const RuntimeFolder>(fd, directory);
}

SegmentPlace place_of(const SegmentSource& source, pid_t pid) {
  SegmentPlace place;
  place.pid = pid;
  place.own_namespace = own_name_space("pid");
  const RuntimeFolderPtr own = own_folder(source.directory);
  const ProcessFolder process(pid);
  const std::uint64_t its = process.name_space("pid");
  const bool is_inside = its != 0 && place.own_namespace != 0 && its != place.own_namespace;
  const std::uint64_t mount = process.name_space("mnt");
  const bool sees_others = mount != 0 && mount != own_name_space("mnt");
  std::map<std::string, RuntimeFolderPtr> folders;
  if (!is_inside) {
    place.says = {static_cast<std::uint32_t>(pid), 0};
    place.folder = own;
    for (const stats::FileName& name : names_of(place.says.pid, place.own_namespace)) {
      place.name = text_of_name(name);
      if (place.exists()) return place;
    }
    place.name = text_of_name(stats::FileName::of(place.says.pid, place.own_namespace));
    if (!sees_others || !source.and_containers) return place;
    SegmentPlace there = place;
    there.says.pid_namespace = place.own_namespace;
    there.folder = nullptr;
    const std::string environment = process.text("environ");
    return find_place(process, environment, source.directory, folders, nullptr, there) ? there : place;
  }
  const std::string environment = process.text("environ");
  place.says = {static_cast<std::uint32_t>(process.own_pid()), its};
  place.container = ContainerNames().of(process, environment);
  const RuntimeFolder* const only = source.and_containers ? nullptr : own.get();
  if (find_place(process, environment, source.directory, folders, only, place)) return place;
  const std::string name = text_of_name(stats::FileName::of(place.says.pid, its));
  struct stat status;
  const bool mapped = own->is_there() &&
                      fstatat(own->fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                      maps_file(pid, status.st_ino, name);
  if (mapped || only != nullptr) place.folder = own;
  place.name = name;
  return place;
}

ContainerSearch::ContainerSearch(const SegmentSource& source, RuntimeFolderPtr own, std::set<Key> known)
    : source_(source), own_(std::move(own)), known_(std::move(known)) {}

// Those below one root stand together.
std::vector<ContainerSearch::Candidate> ContainerSearch::candidates() {
  std::vector<Candidate> result;
  DIR* const listing = opendir("/proc");
  while (const dirent* entry = listing != nullptr ? readdir(listing) : nullptr) {
    const auto pid = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (pid <= 0) continue;
    const std::string folder = entry->d_name;
    struct stat status;
    // One look for each process of the host, and no more at most of them.
    if (fstatat(dirfd(listing), (folder + "/ns/mnt").c_str(), &status, 0) != 0) {
      hidden_ = hidden_ || (errno == EACCES && pid != 1);  // process 1 is of this namespace
      continue;
    }
    Candidate candidate{status.st_ino, 0, 0, pid};
    bool is_other = status.st_ino != mount_namespace_;
    if (!is_other && !known_.empty()) {
      is_other = fstatat(dirfd(listing), (folder + "/ns/pid").c_str(), &status, 0) == 0 &&
                 status.st_ino != pid_namespace_;
    }
    if (!is_other || fstatat(dirfd(listing), (folder + "/root/.").c_str(), &status, 0) != 0) continue;
    candidate.root_device = status.st_dev;
    candidate.root_inode = status.st_ino;
    result.push_back(candidate);
  }
  if (listing != nullptr) closedir(listing);
  std::sort(result.begin(), result.end());
  return result;
}

void ContainerSearch::look_into(const Candidate& candidate, Folders& folders, const Act& act) {
  const ProcessFolder process(candidate.pid);
  const std::uint64_t its = process.name_space("pid");
  if (its == 0) return;  // it has ended
  SegmentPlace place;
  place.pid = candidate.pid;
  place.own_namespace = pid_namespace_;
  place.says = {static_cast<std::uint32_t>(candidate.pid), its};
  if (its != pid_namespace_) place.says.pid = static_cast<std::uint32_t>(process.own_pid());
  const Key key{its, place.says.pid};
  if (known_.contains(key)) running_[key] = candidate.pid;
  struct stat root;
  // It has gone elsewhere, or its number is another process' by now.
  if (process.name_space("mnt") != candidate.mount_namespace || !process.root(root) ||
      root.st_ino != candidate.root_inode || root.st_dev != candidate.root_device) {
    return;
  }
  if (its == pid_namespace_ && own_->is_there()) {
    // A service with a mount namespace of its own, and the host's directory.
    RuntimeFolderPtr& folder = folders[source_.directory];
    if (!folder) folder = folder_of(process, source_.directory);
    if (folder->is(*own_)) return;
  }
  const std::string environment = process.text("environ");
  const RuntimeFolder* const only = source_.and_containers ? nullptr : own_.get();
  if (!find_place(process, environment, source_.directory, folders, only, place)) return;
  if (place.is_of_container()) place.container = names_.of(process, environment);
  act(place);
}

void ContainerSearch::run(const Act& act) {
  Folders folders;
  const Candidate* before = nullptr;
  const std::vector<Candidate> all = candidates();
  for (const Candidate& candidate : all) {
    const bool same_root = before != nullptr && before->has_root_of(candidate);
    if (!same_root) folders.clear();
    before = &candidate;
    look_into(candidate, folders, act);
  }
}

ContainerSearch::Known ContainerSearch::look_at(const Key& key, const std::string& name,
                                                SegmentPlace& place) {
  place = SegmentPlace{};
  place.folder = own_;
  place.name = name;
  place.own_namespace = pid_namespace_;
  place.says = {key.second, key.first};
  const auto running = running_.find(key);
  if (running == running_.end()) {
    // The initial pid namespace has every process.
    const bool sees_all = pid_namespace_ == stats::kInitialPidNamespace && !hidden_;
    return sees_all ? Known::kEnded : Known::kCannotTell;
  }
  struct stat status;
  const ProcessFolder process(running->second);
  if (fstatat(own_->fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
      !maps_file(running->second, status.st_ino, name)) {
    return Known::kCannotTell;
  }
  place.pid = running->second;
  place.container = names_.of(process, process.text("environ"));
  return Known::kRuns;
}

}  // namespace ringroad::cli
