#include "cli/exporter/http_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <csignal>
#include <list>
#include <optional>
#include <utility>

namespace ringroad::cli::exporter {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::uint32_t kMostHeadBytes = 8192;
constexpr std::chrono::seconds kRequestTime{10};
constexpr std::chrono::seconds kAnswerTime{10};
constexpr std::chrono::minutes kKeepTime{5};
// After accept(2) has failed, for want of descriptors say.
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr const char* kPath = "/metrics";
constexpr const char* kFrontPage =
    "<!DOCTYPE html>\n<title>Ringroad exporter</title>\n"
    "<p>Ringroad's <a href=\"/metrics\">metrics</a> of this host.</p>\n";

using Request = http::request<http::empty_body>;
using Response = http::response<http::string_body>;

Response answer_to(const Request& request, const HttpServer::Content& content) {
  Response response{http::status::ok, request.version()};
  response.set(http::field::server, "ringroad");
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  const auto path = request.target().substr(0, request.target().find('?'));
  const bool known = path == kPath || path == "/";
  if (!known) {
    response.result(http::status::not_found);
    response.body() = "There is only /metrics.\n";
  } else if (request.method() != http::verb::get && request.method() != http::verb::head) {
    response.result(http::status::method_not_allowed);
    response.set(http::field::allow, "GET, HEAD");
    response.body() = "Only GET and HEAD are answered.\n";
  } else if (path == "/") {
    response.set(http::field::content_type, "text/html; charset=utf-8");
    response.body() = kFrontPage;
  } else {
    const auto accept = request[http::field::accept];
    const Format format = accepted_format({accept.data(), accept.size()});
    response.set(http::field::content_type, content_type(format));
    response.body() = content(format);
  }
  return response;
}

// One client. It owns itself: whatever it waits for holds a reference.
class Session : public std::enable_shared_from_this<Session> {
 public:
  using Connections = std::list<std::weak_ptr<Session>>;

  Session(tcp::socket&& socket, const HttpServer::Content& content, Connections& connections)
      : stream_(std::move(socket)), content_(content), connections_(connections) {}
  ~Session() {
    if (listed_) connections_.erase(place_);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void start() {
    enlist();
    stream_.expires_after(kRequestTime);
    read_head();
  }

  void close() {
    error_code ignored;
    stream_.socket().close(ignored);
  }

 private:
  // Behind all others: it has waited the least.
  void enlist() {
    if (listed_) connections_.erase(place_);
    place_ = connections_.insert(connections_.end(), weak_from_this());
    listed_ = true;
  }

  // Until the first byte of the next request.
  void wait() {
    enlist();
    if (buffer_.size() > 0) return next();
    stream_.expires_after(kKeepTime);
    stream_.async_read_some(buffer_.prepare(kMostHeadBytes),
                            [self = shared_from_this()](error_code error, std::size_t bytes) {
                              if (error) return;
                              self->buffer_.commit(bytes);
                              self->next();
                            });
  }

  void next() {
    // A deadline for the head as a whole, however slowly it drips.
    stream_.expires_after(kRequestTime);
    read_head();
  }

  void read_head() {
    parser_.emplace();
    parser_->header_limit(kMostHeadBytes);
    parser_->skip(false);
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](error_code error, std::size_t) { self->on_head(error); });
  }

  void on_head(error_code error) {
    if (error == http::error::end_of_stream || error == beast::error::timeout ||
        error == asio::error::operation_aborted || error == asio::error::connection_reset) {
      return finish();
    }
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      return refuse(http::status::request_header_fields_too_large, "The request is too long.\n");
    }
    if (error) return refuse(http::status::bad_request, "This is no HTTP request.\n");
    try {
      response_ = answer_to(parser_->get(), content_);
    } catch (const std::exception&) {
      return refuse(http::status::service_unavailable, "Out of memory.\n");
    }
    // Where a body follows, nobody looks for the next request behind it.
    response_.keep_alive(parser_->get().keep_alive() && parser_->is_done());
    send(parser_->get().method() == http::verb::head);
  }

  void refuse(http::status status, const char* why) {
    response_ = Response{status, 11};
    response_.set(http::field::content_type, "text/plain; charset=utf-8");
    response_.body() = why;
    response_.keep_alive(false);
    send(false);
  }

  void send(bool head_only) {
    response_.prepare_payload();
    serializer_.emplace(response_);
    stream_.expires_after(kAnswerTime);
    const auto sent = [self = shared_from_this()](error_code error, std::size_t) {
      self->serializer_.reset();
      if (error) return;
      if (self->response_.keep_alive()) return self->wait();
      self->finish();
    };
    if (head_only) {
      http::async_write_header(stream_, *serializer_, sent);
    } else {
      http::async_write(stream_, *serializer_, sent);
    }
  }

  // Nothing more is sent; what the client still sends is not read, so the kernel may reset it.
  void finish() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

  beast::tcp_stream stream_;
  const HttpServer::Content& content_;
  Connections& connections_;
  Connections::iterator place_;
  bool listed_ = false;
  beast::flat_buffer buffer_{2 * kMostHeadBytes};
  std::optional<http::request_parser<http::empty_body>> parser_;
  Response response_;
  std::optional<http::serializer<false, http::string_body>> serializer_;
};

// "host:port", "[address]:port", ":port".
bool split(const std::string& address, std::string& host, std::string& port) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return false;
  host = address.substr(0, colon);
  port = address.substr(colon + 1);
  const bool digits = !port.empty() && port.size() <= 5 &&
                      port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || std::stoul(port) > 65535) return false;
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
    return !host.empty();
  }
  return host.find_first_of("[]:") == std::string::npos;
}

std::string to_text(const tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + host + "]" : host) + ":" +
         std::to_string(endpoint.port());
}

}  // namespace

class HttpServer::Service {
 public:
  explicit Service(Content content)
      : content_(std::move(content)), signals_(context_, SIGTERM, SIGINT) {}

  bool listen(const std::string& address, std::vector<std::string>& listening, std::string& why) {
    std::string host;
    std::string port;
    if (!split(address, host, port)) {
      why =
          "\"" + address +
          "\" is no address and port: write 127.0.0.1:9071, [::1]:9071, or :9071 for every address";
      return false;
    }
    error_code error;
    std::vector<tcp::endpoint> endpoints;
    if (host.empty()) {
      const auto number = static_cast<std::uint16_t>(std::stoul(port));
      // The first also takes IPv4; where the kernel has no IPv6, the second has to do.
      endpoints = {{asio::ip::address_v6::any(), number}, {asio::ip::address_v4::any(), number}};
    } else {
      const auto found = tcp::resolver(context_).resolve(host, port, tcp::resolver::passive, error);
      for (const auto& entry : found) endpoints.push_back(entry.endpoint());
      if (endpoints.empty()) why = "cannot find " + host + ": " + error.message();
    }
    for (const tcp::endpoint& endpoint : endpoints) {
      if (open(endpoint, host.empty(), listening, why)) return true;
    }
    return false;
  }

  void run() {
    signals_.async_wait([this](error_code error, int) {
      if (!error) context_.stop();
    });
    context_.run();
  }

 private:
  struct Door {
    explicit Door(asio::io_context& context) : acceptor(context), pause(context) {}
    tcp::acceptor acceptor;
    asio::steady_timer pause;
  };

  bool open(const tcp::endpoint& endpoint, bool both_families, std::vector<std::string>& listening,
            std::string& why) {
    error_code error;
    Door door(context_);
    tcp::acceptor& acceptor = door.acceptor;
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error && endpoint.address().is_v6()) {
      acceptor.set_option(asio::ip::v6_only(!both_families), error);
    }
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      why = "cannot listen on " + to_text(endpoint) + ": " + error.message();
      return false;
    }
    listening.push_back(to_text(acceptor.local_endpoint()));
    doors_.push_back(std::move(door));
    accept(doors_.back());
    return true;
  }

  void accept(Door& door) {
    door.acceptor.async_accept([this, &door](error_code error, tcp::socket socket) {
      if (error) {
        door.pause.expires_after(kAcceptPause);
        door.pause.async_wait([this, &door](error_code) { accept(door); });
        return;
      }
      if (connections_.size() >= kMostConnections) {
        if (const auto oldest = connections_.front().lock()) oldest->close();
      }
      std::make_shared<Session>(std::move(socket), content_, connections_)->start();
      accept(door);
    });
  }

  Content content_;
  Session::Connections connections_;  // the one that has waited for the longest time first
  // After what the connections hold on to, so that it goes first.
  asio::io_context context_{1};
  asio::signal_set signals_;
  std::list<Door> doors_;
};

HttpServer::HttpServer(Content content) : service_(std::make_unique<Service>(std::move(content))) {}
HttpServer::~HttpServer() = default;

bool HttpServer::listen(const std::string& address, std::string& why) {
  return service_->listen(address, addresses_, why);
}

void HttpServer::run() { service_->run(); }

}  // namespace ringroad::cli::exporter
