#include "server/http_endpoint.h"

#include <CivetServer.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace ithaca::server {

namespace {

// civetweb's notation for the address: "127.0.0.1:9400", "[::1]:9400", "9400".
absl::StatusOr<std::string> CivetwebAddress(const std::string& address) {
  const auto invalid = [&address](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", address, "\": ", why));
  };
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return invalid("expected HOST:PORT");
  const std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  int32_t number = -1;
  if (!absl::SimpleAtoi(port, &number) || number < 0 || number > 65535) {
    return invalid(
        absl::StrCat("expected a port of 0 to 65535, got \"", port, "\""));
  }
  if (host.empty()) return absl::StrCat(number);
  if (host == "localhost") return absl::StrCat("127.0.0.1:", number);
  in_addr ipv4{};
  in6_addr ipv6{};
  const bool bracketed =
      host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (inet_pton(AF_INET, host.c_str(), &ipv4) != 1 &&
      !(bracketed &&
        inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &ipv6) ==
            1)) {
    return invalid(absl::StrCat(
        "expected an IP address or localhost as host, got \"", host, "\""));
  }
  return absl::StrCat(host, ":", number);
}

void Respond(mg_connection* connection, const char* status,
             const char* content_type, const std::string& body) {
  mg_printf(connection,
            "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
            "Connection: close\r\n\r\n",
            status, content_type, body.size());
  mg_write(connection, body.data(), body.size());
}

class Route : public CivetHandler {
 public:
  using Answer = std::function<void(mg_connection*)>;
  explicit Route(Answer answer) : answer_(std::move(answer)) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    answer_(connection);
    return true;
  }

 private:
  const Answer answer_;
};

// Calls `port` of an address that this process listens on, and hangs up.
void Knock(const std::string& address, int port) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.empty()) host = "0.0.0.0";
  if (host == "localhost") host = "127.0.0.1";
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) !=
      0) {
    return;
  }
  const int caller =
      socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (caller >= 0) {
    // Nobody waits for the answer, nor asks whether there was one.
    static_cast<void>(connect(caller, found->ai_addr, found->ai_addrlen));
    close(caller);
  }
  freeaddrinfo(found);
}

// civetweb's latest complaint; its threads write it at any time.
struct LastMessage {
  absl::Mutex mutex;
  std::string text ABSL_GUARDED_BY(mutex);
};

class CivetwebEndpoint : public HttpEndpoint {
 public:
  CivetwebEndpoint(const std::string& address, Handlers handlers)
      : address_(address),
        handlers_(std::move(handlers)),
        live_([](mg_connection* connection) {
          Respond(connection, "200 OK", "text/plain", "alive\n");
        }),
        ready_([this](mg_connection* connection) {
          if (handlers_.ready()) {
            Respond(connection, "200 OK", "text/plain", "ready\n");
          } else {
            Respond(connection, "503 Service Unavailable", "text/plain",
                    "not ready\n");
          }
        }),
        metrics_([this](mg_connection* connection) {
          Respond(connection, "200 OK",
                  "text/plain; version=0.0.4; charset=utf-8",
                  handlers_.metrics());
        }) {}

  ~CivetwebEndpoint() override {
    if (server_ == nullptr) return;
    // civetweb looks whether it is to end when somebody calls, or every 2 s.
    const int own_port = CivetwebEndpoint::port();
    absl::Notification closed;
    std::thread caller([&] {
      do {
        Knock(address_, own_port);
      } while (!closed.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
    });
    server_->close();
    closed.Notify();
    caller.join();
  }

  absl::Status Listen(const std::string& civetweb_address) {
    // Enough threads, and little patience: connections that say nothing must
    // not hold up a probe.
    const std::vector<std::string> options = {
        "listening_ports",    civetweb_address,
        "num_threads",        "32",
        "request_timeout_ms", "1000"};
    CivetCallbacks callbacks;
    callbacks.log_message = [](const mg_connection* connection,
                               const char* message) {
      // civetweb's own user data is the server under construction.
      const auto* server = static_cast<const CivetServer*>(
          mg_get_user_data(mg_get_context(connection)));
      auto* said = static_cast<LastMessage*>(
          const_cast<void*>(server->getUserContext()));
      const absl::MutexLock lock(&said->mutex);
      said->text = message;
      return 1;
    };
    try {
      server_ = std::make_unique<CivetServer>(options, &callbacks, &said_);
    } catch (const CivetException&) {
      const absl::MutexLock lock(&said_.mutex);
      return absl::UnavailableError(absl::StrCat(
          "cannot listen on ", address_, " for HTTP (--metrics-listen): ",
          said_.text.empty() ? "no reason given" : said_.text));
    }
    server_->addHandler("/livez$", live_);
    server_->addHandler("/readyz$", ready_);
    server_->addHandler("/metrics$", metrics_);
    return absl::OkStatus();
  }

  int port() const override { return server_->getListeningPorts().front(); }

 private:
  const std::string address_;
  const Handlers handlers_;
  Route live_;
  Route ready_;
  Route metrics_;
  LastMessage said_;
  std::unique_ptr<CivetServer> server_;  // last: its threads use the rest
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(
    const std::string& address, Handlers handlers) {
  const auto civetweb_address = CivetwebAddress(address);
  if (!civetweb_address.ok()) return civetweb_address.status();
  auto endpoint =
      std::make_unique<CivetwebEndpoint>(address, std::move(handlers));
  if (auto status = endpoint->Listen(*civetweb_address); !status.ok()) {
    return status;
  }
  return std::unique_ptr<HttpEndpoint>(std::move(endpoint));
}

}  // namespace ithaca::server
