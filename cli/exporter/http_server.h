// A small HTTP/1.1 server on one thread: GET and HEAD of /metrics, and a page that names it.
//
// Clients are not trusted. A request without a body, its head of at most 8 KiB, has 10 s to arrive;
// an answer has 10 s to be taken; a connection may be kept for 5 min in between. There are at most
// kMostConnections, and for one more the one that has waited for the longest time is closed: a
// client that opens connections and says nothing keeps no other out.
//
// Thread rule: one thread. Errors at start are in `why`; std::bad_alloc may be thrown.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/exporter/exposition.h"

namespace ringroad::cli::exporter {

inline constexpr std::size_t kMostConnections = 64;

class HttpServer {
 public:
  using Content = std::function<std::string(Format)>;

  explicit HttpServer(Content content);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // `address`: "127.0.0.1:9071", "[::1]:9071", a host's name and port, or ":9071" for every address
  // of this host. Port 0: one that is free. May be called again for another one. False with `why`
  // (a sentence without its full stop) when it cannot listen there.
  bool listen(const std::string& address, std::string& why);
  // Where it listens: "127.0.0.1:9071", "[::]:9071".
  const std::vector<std::string>& addresses() const noexcept { return addresses_; }

  // Serves until SIGTERM or SIGINT.
  void run();

 private:
  class Service;
  std::unique_ptr<Service> service_;
  std::vector<std::string> addresses_;
};

}  // namespace ringroad::cli::exporter
