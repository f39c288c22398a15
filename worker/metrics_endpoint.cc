#include "worker/metrics_endpoint.h"

#include <CivetServer.h>

#include <exception>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ithaca {
namespace {

// One path that answers GET with a text.
class Page : public CivetHandler {
 public:
  explicit Page(std::function<std::string()> body) : body_(std::move(body)) {}

  bool handleGet(CivetServer* /*server*/, mg_connection* connection) override {
    const std::string body = body_();
    mg_send_http_ok(connection, "text/plain; version=0.0.4; charset=utf-8",
                    static_cast<long long>(body.size()));
    mg_write(connection, body.data(), body.size());
    return true;
  }

 private:
  const std::function<std::string()> body_;
};

class CivetwebMetricsEndpoint : public MetricsEndpoint {
 public:
  // Throws CivetException.
  CivetwebMetricsEndpoint(const std::string& listening_port,
                          std::function<std::string()> metrics)
      : live_([] { return std::string("alive\n"); }),
        metrics_(std::move(metrics)),
        server_({"listening_ports", listening_port, "num_threads", "8",
                 "request_timeout_ms", "1000"}) {
    server_.addHandler("/livez$", live_);
    server_.addHandler("/metrics$", metrics_);
  }
  ~CivetwebMetricsEndpoint() override { server_.close(); }

  int port() const override {
    // const_cast: civetweb's getter is not const.
    return const_cast<CivetServer&>(server_).getListeningPorts().at(0);
  }

 private:
  Page live_;
  Page metrics_;
  CivetServer server_;  // last: it calls the pages until it is closed
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& address, std::function<std::string()> metrics) {
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon == std::string::npos ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected HOST:PORT, got '", address, "'"));
  }
  // civetweb knows no names, and takes a bare port for every address.
  const std::string host = address.substr(0, colon);
  std::string listening_port = address;
  if (host.empty()) listening_port = absl::StrCat(port);
  if (host == "localhost") listening_port = absl::StrCat("127.0.0.1:", port);
  try {
    return std::make_unique<CivetwebMetricsEndpoint>(listening_port,
                                                     std::move(metrics));
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": ", error.what()));
  }
}

}  // namespace ithaca
