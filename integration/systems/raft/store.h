#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "integration/systems/raft/log.h"
#include "raft.pb.h"

namespace raft {

// One of the stores: its log, what of it is committed, and what it has still to tell the others.
// The first leads for ever; elections are nothing that a transport could show anything by.
class Store {
 public:
  static constexpr uint64_t kLeader = 1;
  // Told once the command is committed, how long after it was appended.
  using Committed = std::function<void(uint64_t append_to_commit_ns)>;
  struct Proposal {
    std::string key, value;
    Committed committed;
  };

  Store(uint64_t id, const std::vector<uint64_t>& others, const std::string& log_path);

  uint64_t id() const { return id_; }
  bool leads() const { return id_ == kLeader; }
  // A key has no byte 0: that is what ends it in an entry.
  void propose(std::vector<Proposal> proposals);
  void receive(const Message& message);
  bool find(const std::string& key, std::string* value);
  uint64_t committed();

  // What `other` is to be sent next; waits for it, at most until a heartbeat is due. Nothing: the
  // store stops.
  bool outgoing(uint64_t other, Batch* batch);
  // The stream to `other` is a new one: what was on its way may be lost.
  void stream_began(uint64_t other);
  void stop();

 private:
  struct Other {
    uint64_t next = 1;   // the first entry that was not sent to it
    uint64_t match = 0;  // what it is known to have
    uint64_t told = 0;   // the commit index that it was last told
    bool answer = false;
    bool missed = false;
  };
  struct Pending {
    std::chrono::steady_clock::time_point appended;
    Committed committed;
  };

  void advance(uint64_t committed, std::vector<std::function<void()>>* to_tell);

  const uint64_t id_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  Log log_;
  uint64_t committed_ = 0;
  std::map<uint64_t, Other> others_;
  std::map<uint64_t, Pending> pending_;
  std::map<std::string, std::string> values_;
};

}  // namespace raft
