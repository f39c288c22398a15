#include "server/http_endpoint.h"

#include <CivetServer.h>
#include <arpa/inet.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

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

// civetweb's latest complaint; its threads write it at any time.
struct LastMessage {
  absl::Mutex mutex;
  std::string text ABSL_GUARDED_BY(mutex);
};

class CivetwebEndpoint : public HttpEndpoint {
 public:
  explicit CivetwebEndpoint(Handlers handlers)
      : handlers_(std::move(handlers)),
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

  absl::Status Listen(const std::string& address,
                      const std::string& civetweb_address) {
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
          "cannot listen on ", address,
          " for HTTP: ", said_.text.empty() ? "no reason given" : said_.text));
    }
    server_->addHandler("/livez$", live_);
    server_->addHandler("/readyz$", ready_);
    server_->addHandler("/metrics$", metrics_);
    return absl::OkStatus();
  }

  int port() const override { return server_->getListeningPorts().front(); }

 private:
  const Handlers handlers_;
  Route live_;
  Route ready_;
  Route metrics_;
  LastMessage said_;
  std::unique_ptr<CivetServer> server_;  // ends first: its threads use the rest
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(
    const std::string& address, Handlers handlers) {
  const auto civetweb_address = CivetwebAddress(address);
  if (!civetweb_address.ok()) return civetweb_address.status();
  auto endpoint = std::make_unique<CivetwebEndpoint>(std::move(handlers));
  if (auto status = endpoint->Listen(address, *civetweb_address);
      !status.ok()) {
    return status;
  }
  return std::unique_ptr<HttpEndpoint>(std::move(endpoint));
}

}  // namespace ithaca::server
