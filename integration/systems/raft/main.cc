// A store with TiKV's transport, and the load for it.
//
//   raft_store serve ID LOG REGISTRY ADDRESS...        the ID-th address is its own; the first
//   leads raft_store load ADDRESS SECONDS AT_ONCE BYTES NAME puts NAME.0, NAME.1 ...
//
// A store tells the etcd at REGISTRY (none: "-") how much it has committed, as TiKV does PD.

#include <grpcpp/grpcpp.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <future>
#include <iostream>
#include <set>
#include <string>
#include <thread>

#include "etcd.grpc.pb.h"
#include "integration/systems/raft/store.h"
#include "raft.grpc.pb.h"

namespace raft {
namespace {

using std::chrono::steady_clock;

// TiKV's grpc-keepalive-time and grpc-keepalive-timeout, which are of 10 s and 3 s, in one.
int keepalive_ms() {
  const char* given = std::getenv("RAFT_KEEPALIVE_MS");
  return given != nullptr ? std::atoi(given) : 1000;
}
constexpr auto kRetry = std::chrono::milliseconds(100);
constexpr auto kPatience = std::chrono::seconds(10);

std::shared_ptr<grpc::Channel> channel_to(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms());
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_ms());
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, keepalive_ms());
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

class Transport final : public raft::Transport::Service {
 public:
  explicit Transport(Store* store) : store_(*store) {}

  grpc::Status BatchRaft(grpc::ServerContext*, grpc::ServerReader<Batch>* reader, Done*) override {
    Batch batch;
    while (reader->Read(&batch)) {
      for (const Message& message : batch.messages()) store_.receive(message);
    }
    return grpc::Status::OK;
  }

  grpc::Status BatchCommands(grpc::ServerContext* context,
                             grpc::ServerReaderWriter<Outcomes, Commands>* stream) override {
    // Outlives the call: a command may be committed when its client is gone.
    const auto answers = std::make_shared<Answers>();
    std::thread writer([&] {
      for (Outcomes outcomes; answers->take(context, &outcomes); outcomes.Clear()) {
        stream->Write(outcomes);
      }
    });
    Commands commands;
    while (stream->Read(&commands)) {
      std::vector<Store::Proposal> proposals;
      for (Command& command : *commands.mutable_commands()) {
        proposals.push_back(
            {std::move(*command.mutable_key()), std::move(*command.mutable_value()),
             [answers, id = command.id()](uint64_t took) { answers->add(id, took); }});
      }
      answers->expect(proposals.size());
      store_.propose(std::move(proposals));
    }
    answers->end();
    writer.join();
    return grpc::Status::OK;
  }

 private:
  class Answers {
   public:
    void expect(size_t more) {
      const std::lock_guard lock(mutex_);
      expected_ += more;
    }
    void add(uint64_t id, uint64_t took) {
      const std::lock_guard lock(mutex_);
      Outcome& outcome = *outcomes_.add_outcomes();
      outcome.set_id(id);
      outcome.set_append_to_commit_ns(took);
      --expected_;
      changed_.notify_one();
    }
    void end() {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      changed_.notify_one();
    }
    // False: there will be no more.
    bool take(grpc::ServerContext* context, Outcomes* outcomes) {
      std::unique_lock lock(mutex_);
      while (outcomes_.outcomes().empty()) {
        if ((ended_ && expected_ == 0) || context->IsCancelled()) return false;
        changed_.wait_for(lock, kRetry);
      }
      outcomes->Swap(&outcomes_);
      return true;
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    Outcomes outcomes_;
    size_t expected_ = 0;
    bool ended_ = false;
  };

  Store& store_;
};

// For etcd's own client, which is a Go program.
class KeyValues final : public etcdserverpb::KV::Service {
 public:
  explicit KeyValues(Store* store) : store_(*store) {}

  grpc::Status Put(grpc::ServerContext*, const etcdserverpb::PutRequest* request,
                   etcdserverpb::PutResponse* response) override {
    if (!store_.leads()) return {grpc::StatusCode::FAILED_PRECONDITION, "another store leads"};
    const auto committed = std::make_shared<std::promise<void>>();
    store_.propose(
        {{request->key(), request->value(), [committed](uint64_t) { committed->set_value(); }}});
    if (committed->get_future().wait_for(kPatience) != std::future_status::ready) {
      return {grpc::StatusCode::DEADLINE_EXCEEDED, "not committed in time"};
    }
    response->mutable_header()->set_member_id(store_.id());
    return grpc::Status::OK;
  }

  grpc::Status Range(grpc::ServerContext*, const etcdserverpb::RangeRequest* request,
                     etcdserverpb::RangeResponse* response) override {
    response->mutable_header()->set_member_id(store_.id());
    std::string value;
    if (store_.find(request->key(), &value)) {
      etcdserverpb::KeyValue& found = *response->add_kvs();
      found.set_key(request->key());
      found.set_value(std::move(value));
      response->set_count(1);
    }
    return grpc::Status::OK;
  }

 private:
  Store& store_;
};

// The stream to another store, made anew whenever it breaks.
void send_to(Store* store, uint64_t other, const std::string& address) {
  const auto stub = raft::Transport::NewStub(channel_to(address));
  for (bool goes_on = true; goes_on;) {
    grpc::ClientContext context;
    Done done;
    const auto stream = stub->BatchRaft(&context, &done);
    store->stream_began(other);
    for (;;) {
      Batch batch;
      goes_on = store->outgoing(other, &batch);
      if (!goes_on || !stream->Write(batch)) break;
    }
    context.TryCancel();
    const grpc::Status status = stream->Finish();
    if (!goes_on) return;
    std::cerr << "stream to store " << other << ": " << status.error_message() << std::endl;
    std::this_thread::sleep_for(kRetry);
  }
}

void register_at(Store* store, const std::string& address, const std::atomic<bool>* stopping) {
  const auto stub = etcdserverpb::KV::NewStub(channel_to(address));
  while (!*stopping) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    etcdserverpb::PutRequest request;
    request.set_key("/stores/" + std::to_string(store->id()));
    request.set_value(std::to_string(store->committed()));
    etcdserverpb::PutResponse response;
    const grpc::Status status = stub->Put(&context, request, &response);
    if (!status.ok()) std::cerr << "registry: " << status.error_message() << std::endl;
    std::this_thread::sleep_for(kRetry);
  }
}

int serve(uint64_t id, const std::string& log, const std::string& registry,
          const std::vector<std::string>& addresses) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);

  std::vector<uint64_t> others;
  for (uint64_t other = 1; other <= addresses.size(); ++other) {
    if (other != id) others.push_back(other);
  }
  Store store(id, others, log);
  Transport transport(&store);
  KeyValues key_values(&store);
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms());
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_ms());
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             keepalive_ms() / 2);
  builder.AddListeningPort(addresses[id - 1], grpc::InsecureServerCredentials());
  builder.RegisterService(&transport);
  builder.RegisterService(&key_values);
  const auto server = builder.BuildAndStart();
  if (!server) return EXIT_FAILURE;

  std::atomic<bool> stopping = false;
  std::vector<std::thread> threads;
  for (const uint64_t other : others) {
    threads.emplace_back(send_to, &store, other, addresses[other - 1]);
  }
  if (registry != "-") threads.emplace_back(register_at, &store, registry, &stopping);
  int signal = 0;
  sigwait(&ends, &signal);
  stopping = true;
  store.stop();
  for (std::thread& thread : threads) thread.join();
  server->Shutdown(std::chrono::system_clock::now() + kRetry);
  return EXIT_SUCCESS;
}

std::string value_of(uint64_t number, size_t bytes) {
  std::string value(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) value[i] = static_cast<char>((number * 31 + i * 7) % 251);
  return value;
}

int load(const std::string& address, double seconds, size_t at_once, size_t bytes,
         const std::string& name) {
  const auto stub = raft::Transport::NewStub(channel_to(address));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const auto stream = stub->BatchCommands(&context);
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<uint64_t> took;
  bool ended = false;
  std::thread reader([&] {
    for (Outcomes outcomes; stream->Read(&outcomes);) {
      const std::lock_guard lock(mutex);
      for (const Outcome& outcome : outcomes.outcomes()) {
        took.push_back(outcome.append_to_commit_ns());
      }
      changed.notify_one();
    }
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_one();
  });
  const auto began = steady_clock::now();
  const auto end = began + std::chrono::duration<double>(seconds);
  uint64_t sent = 0;
  while (steady_clock::now() < end) {
    size_t room = 0;
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return ended || sent - took.size() < at_once; });
      if (ended) break;
      room = at_once - (sent - took.size());
    }
    Commands commands;
    for (; room > 0; --room, ++sent) {
      Command& command = *commands.add_commands();
      command.set_id(sent);
      command.set_key(name + "." + std::to_string(sent));
      command.set_value(value_of(sent, bytes));
    }
    if (!stream->Write(commands)) break;
  }
  stream->WritesDone();
  reader.join();
  const grpc::Status status = stream->Finish();
  const double lasted = std::chrono::duration<double>(steady_clock::now() - began).count();
  if (!status.ok() || took.size() != sent) {
    std::cerr << took.size() << " of " << sent << " committed: " << status.error_message() << "\n";
    return EXIT_FAILURE;
  }
  std::ranges::sort(took);
  const auto percentile = [&](size_t percent) {
    return static_cast<double>(took[(took.size() - 1) * percent / 100]) / 1000;
  };
  std::printf("{\"commands\": %zu, \"per_s\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f}\n",
              took.size(), static_cast<double>(took.size()) / lasted, percentile(50),
              percentile(99));
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace raft

int main(int count, char** words) {
  const std::vector<std::string> given(words + 1, words + count);
  if (given.size() >= 5 && given[0] == "serve") {
    const uint64_t id = std::stoull(given[1]);
    if (id >= 1 && id <= given.size() - 4) {
      return raft::serve(id, given[2], given[3], {given.begin() + 4, given.end()});
    }
  }
  if (given.size() == 6 && given[0] == "load") {
    return raft::load(given[1], std::stod(given[2]), std::stoul(given[3]), std::stoul(given[4]),
                      given[5]);
  }
  std::cerr << "usage: raft_store serve ID LOG REGISTRY ADDRESS...\n"
               "       raft_store load ADDRESS SECONDS AT_ONCE BYTES NAME\n";
  return 2;
}
